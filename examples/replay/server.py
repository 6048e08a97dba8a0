"""The server process of this example: started, killed and started again on the same folder."""

import pathlib
import re
import subprocess
import time
import urllib.error
import urllib.request

START_SECONDS_MAX = 60
READY_LINE = re.compile(r"127\.0\.0\.1:([1-9]\d*)")


class Server:
    def __init__(self, binary, folder):
        self._binary = binary
        self._data = pathlib.Path(folder) / "data"
        self._log = pathlib.Path(folder) / "server.log"
        self._process = None
        self.port = 0  # the first start takes a free one, later starts the same one

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        """Starts it and waits until it is ready to serve."""
        said = self._log.stat().st_size if self._log.exists() else 0
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [self._binary, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", self._data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the example, which then stops the server
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._ready(said):
            if self._process.poll() is not None:
                code = self._process.returncode
                raise RuntimeError(f"the server ended with {code}:\n{self.log()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server was not ready in time:\n{self.log()}")
            time.sleep(0.01)

    def kill(self):
        """SIGKILL: no handler runs, nothing is flushed."""
        self._process.kill()
        self._process.wait()

    def stop(self):
        """SIGTERM, and SIGKILL if that is not enough."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()

    def log(self):
        """The last of what it said."""
        return self._log.read_text(errors="replace")[-4000:]

    def _ready(self, said):
        if self.port == 0:
            with open(self._log, encoding="utf-8", errors="replace") as log:
                log.seek(said)
                match = READY_LINE.search(log.read())
            if match is None:
                return False
            self.port = int(match.group(1))
        try:
            with urllib.request.urlopen(f"{self.endpoint}/readyz", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False
