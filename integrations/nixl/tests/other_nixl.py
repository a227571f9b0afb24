"""A NIXL whose backends have other virtual functions: the plugin says so and is not used, and nothing crashes."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# A backend's class with a function that is new in the middle.
FAKE = """
#include <string>
#define NAMED(name) virtual void name() {}
struct nixlPosixEngine { virtual ~nixlPosixEngine() {} NAMED(supportsRemote) NAMED(newFunction) NAMED(supportsLocal) };
nixlPosixEngine *make() { return new nixlPosixEngine; }
"""
TRY = """
import sys
sys.path.insert(0, sys.argv[1])
from common import agent
try:
    agent("a")
except Exception as error:
    assert type(error).__name__ == "nixlNotFoundError", error
    print("refused")
"""


def main():
    compiler = shutil.which("g++")
    if compiler is None:
        sys.exit("g++ is missing")
    here = pathlib.Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(os.environ["PLUGIN"], folder / "libplugin_POLYRAIL.so")
        source = folder / "fake.cpp"
        source.write_text(FAKE)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libplugin_POSIX.so", source], check=True)
        environment = {**os.environ, "NIXL_PLUGIN_DIR": str(folder)}
        ran = subprocess.run(
            [sys.executable, "-c", TRY, here], env=environment, capture_output=True, text=True, timeout=60
        )
    assert ran.returncode == 0 and ran.stdout.strip() == "refused", ran
    for text in ("Polyrail's backend for NIXL was built for NIXL 1.3 to 1.5", "libplugin_POSIX.so", "virtual function 3 is 11newFunctionEv", "13supportsLocalEv"):
        assert text in ran.stderr, ran.stderr


if __name__ == "__main__":
    main()
