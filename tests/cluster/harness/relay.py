"""A small TCP relay: the API server, which listens in a network namespace, on a port of the host.

Run as a program inside the target's namespace, with the host's listening socket as an inherited descriptor: a socket
belongs to the namespace in which it was made, so no address has to cross. It also inherits the machine-wide lock and
holds it by living. Standard library only; it is started by path.
"""

import argparse
import asyncio
import contextlib
import socket


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()


async def serve(listening: socket.socket, host: str, port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(pump(reader, back), pump(there, writer))
        finally:
            back.close()
            writer.close()

    server = await asyncio.start_server(relay, sock=listening)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("descriptor", type=int)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    listening = socket.socket(fileno=options.descriptor)
    asyncio.run(serve(listening, options.host, options.port))


if __name__ == "__main__":
    main()
