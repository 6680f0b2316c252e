"""A prefix of a bucket as a store of checkpoints, over s3fs.

What is created only once is put with If-None-Match, so of two writers the server lets one win. There are no folders:
an object is there whole or not at all, once its upload has been completed. Errors of the connection and of the
server are tried again for a while, and are then an OSError. Credentials, region and endpoint come from where every S3
client looks for them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …). Called through `store.store_of`.
"""

from __future__ import annotations

import errno
import functools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from trainer.checkpoint.store import Stat, WriteAt

Result = TypeVar("Result")

PART_BYTES = 16 << 20
CONNECT_SECONDS = 10
READ_SECONDS = 30  # without a byte
CLIENT_TRIES = 3  # of each request, by s3fs
PAUSES = (1.0, 4.0)  # seconds, between further tries of what is small
_GONE = ("NoSuchKey", "NoSuchBucket", "404", "NoSuchUpload")
_THERE = ("PreconditionFailed", "412")


@dataclass(frozen=True)
class S3Store:
    bucket: str
    prefix: str  # without a slash at either end

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def where(self, path: str) -> str:
        return f"{self.uri}/{path}"

    def names(self, folder: str = "") -> list[str]:
        start = self._key(folder) + "/"

        def listed() -> list[str]:
            found: list[str] = []
            more: dict[str, str] = {}
            while True:
                page = self._call("list_objects_v2", Prefix=start, Delimiter="/", **more)
                found += [entry["Key"] for entry in page.get("Contents", [])]
                found += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
                if not page.get("IsTruncated"):
                    return found
                more = {"ContinuationToken": page["NextContinuationToken"]}

        return sorted(name for key in self._again(listed) if (name := key.removeprefix(start).strip("/")))

    def stat(self, path: str) -> Stat:
        found = self._again(lambda: self._call("head_object", Key=self._key(path)))
        return Stat(found["ContentLength"], found["LastModified"].timestamp(), found["ETag"])

    def read(self, path: str) -> bytes:
        name = f"{self.bucket}/{self._key(path)}"
        data: bytes = self._again(lambda: self._files.cat_file(name))
        return data

    def read_into(self, path: str, start: int, buffer: memoryview) -> int:
        name = f"{self.bucket}/{self._key(path)}"
        data = self._again(lambda: self._files.cat_file(name, start=start, end=start + len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def create(self, path: str, content: bytes) -> bool:
        key, mark = self._key(path), secrets.token_hex(8)

        def put() -> bool:
            try:
                self._call("put_object", Key=key, Body=content, IfNoneMatch="*", Metadata={"mark": mark})
            except FileExistsError:
                # Ours, when it was put by a try whose answer was lost.
                found: dict[str, str] = self._call("head_object", Key=key).get("Metadata", {})
                return found.get("mark") == mark
            return True

        return self._again(put)

    @property
    def part_bytes(self) -> int:
        return PART_BYTES

    @contextmanager
    def writing(self, path: str) -> Iterator[WriteAt]:
        upload = _Upload(functools.partial(self._call, Key=self._key(path)), PART_BYTES)
        try:
            yield upload.write_at
            upload.complete()
        except BaseException:
            # What cannot be aborted now, the next save's sweep aborts.
            with suppress(OSError):
                upload.abort()
            raise

    def make_folder(self, folder: str = "", *, new: bool = False) -> None:
        """There are no folders."""

    def settle(self, folder: str) -> None:
        """An object is durable when its upload is."""

    def remove(self, path: str) -> None:
        self._again(lambda: self._call("delete_object", Key=self._key(path)))

    def discard(self, folder: str) -> None:
        start = self._key(folder) + "/"
        self._again(lambda: self._abort_uploads(start))
        for name in self.names(folder):
            self.remove(f"{folder}/{name}")

    def sweep(self) -> None:
        """Removals leave nothing half done."""

    def begun(self) -> list[str]:
        start = self._key("") + "/"
        uploads = self._again(lambda: self._uploads(start))
        return sorted({upload["Key"].removeprefix(start).split("/")[0] for upload in uploads})

    def _abort_uploads(self, start: str) -> None:
        for upload in self._uploads(start):
            with suppress(FileNotFoundError):  # its writer has ended it meanwhile
                self._call("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])

    def _uploads(self, start: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        while True:
            page = self._call("list_multipart_uploads", Prefix=start, **more)
            found += page.get("Uploads", [])
            if not page.get("IsTruncated"):
                return found
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self.prefix, path) if part)

    @property
    def _files(self) -> Any:
        return _file_system()

    def _call(self, method: str, **arguments: Any) -> Any:
        with _as_os_errors():
            return self._files.call_s3(method, Bucket=self.bucket, **arguments)

    def _again(self, action: Callable[[], Result]) -> Result:
        """What is refused for good is told at once; the rest is tried again."""
        for seconds in PAUSES:
            try:
                with _as_os_errors():
                    return action()
            except (FileNotFoundError, FileExistsError, PermissionError):
                raise
            except OSError:
                time.sleep(seconds)
        with _as_os_errors():
            return action()


class _Upload:
    """An object in parts, which may come in any order. `call` asks the server something about the object."""

    def __init__(self, call: Callable[..., Any], part_bytes: int) -> None:
        self._call = call
        self._part_bytes = part_bytes
        self._beginning = threading.Lock()
        self._id = ""
        self._tags: dict[int, str] = {}  # part -> what the server calls its content

    def write_at(self, at: int, buffers: Sequence[bytes | memoryview]) -> None:
        body = b"".join(buffers)
        if at == 0 and len(body) < self._part_bytes:  # the only part
            self._call("put_object", Body=body)
            return
        with self._beginning:
            self._id = self._id or self._call("create_multipart_upload")["UploadId"]
        part = at // self._part_bytes + 1
        self._tags[part] = self._call("upload_part", UploadId=self._id, PartNumber=part, Body=body)["ETag"]

    def complete(self) -> None:
        if self._id:
            parts = [{"PartNumber": part, "ETag": tag} for part, tag in sorted(self._tags.items())]
            self._call("complete_multipart_upload", UploadId=self._id, MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        if self._id:
            self._call("abort_multipart_upload", UploadId=self._id)


@functools.cache
def _file_system() -> Any:
    import s3fs

    files = s3fs.S3FileSystem(
        use_listings_cache=False,
        skip_instance_cache=True,
        config_kwargs={
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "retries": {"mode": "standard", "total_max_attempts": 1},
        },
    )
    files.retries = CLIENT_TRIES
    return files


@contextmanager
def _as_os_errors() -> Iterator[None]:
    import aiohttp
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        raise _os_error(error) from error
    except NoCredentialsError as error:
        said = "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of the pods"
        raise PermissionError(errno.EACCES, said) from error
    except (BotoCoreError, aiohttp.ClientError, TimeoutError) as error:
        raise OSError(
            errno.EAGAIN, f"the S3 server does not answer ({type(error).__name__}: {error})"
        ) from error
    except OSError as error:  # s3fs has made it of an answer, sometimes without a number
        if isinstance(error.__cause__, ClientError):
            raise _os_error(error.__cause__) from error.__cause__
        raise


def _os_error(error: Any) -> OSError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    said = f"the S3 server says {error}"
    if code in _THERE or status == 412:
        return FileExistsError(errno.EEXIST, said)
    if code in _GONE or status == 404:
        return FileNotFoundError(errno.ENOENT, said)
    if status in (401, 403):
        return PermissionError(errno.EACCES, said)
    return OSError(errno.EAGAIN, said)
