"""Reads every byte of a token store on this machine, and says whether it is as it was written.

    python -m trainer.data.verify STORE...

Prints one JSON line for each store that is whole, and one error, with file and offset, for the first that is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from trainer.data.store import TokenStore
from trainer.data.write import summary
from trainer.errors import TrainerError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.data.verify", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="folder of a token store")
    options = parser.parse_args(arguments)
    for folder in options.stores:
        try:
            store = TokenStore.at(folder)
            store.verify()
        except TrainerError as error:
            print(f"error: {error}", file=sys.stderr)
            return int(error.exit_code)
        print(json.dumps({"store": str(folder), **summary(store.index)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
