"""Runs the tests with the plugin that PLUGIN names and the NIXL of this Python: run.py [NAME …]

Each is a program of its own, in a folder of plugins of its own, and has two minutes."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
TESTS = ["two_processes", "fans", "lists", "kv_cache", "failures", "names", "inputs", "other_nixl"]
SECONDS = 120


def main():
    plugin = os.environ.get("PLUGIN")
    if not plugin or not os.path.exists(plugin):
        sys.exit(f"PLUGIN is {plugin!r}, allowed is the path of libplugin_POLYRAIL.so")
    chosen = sys.argv[1:] or TESTS
    unknown = [name for name in chosen if name not in TESTS]
    if unknown:
        sys.exit(f"no test is called {unknown[0]}; there are {', '.join(TESTS)}")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(plugin, folder)
        environment = {
            **os.environ,
            "NIXL_PLUGIN_DIR": folder,
            "NIXL_LOG_LEVEL": os.environ.get("NIXL_LOG_LEVEL", "ERROR"),
        }
        for name in chosen:
            start = time.monotonic()
            try:
                ran = subprocess.run(
                    [sys.executable, HERE / f"{name}.py"],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=SECONDS,
                )
                status, output = ran.returncode, ran.stdout
            except subprocess.TimeoutExpired as late:
                status, output = f"no end in {SECONDS} s", late.stdout or b""
            took = time.monotonic() - start
            print(f"{'ok' if status == 0 else 'FAILED'} {name} ({took:.1f} s)", flush=True)
            if status != 0:
                failed += 1
                print(f"status {status}\n{output.decode(errors='replace')}", flush=True)
    sys.exit(f"{failed} of {len(chosen)} failed" if failed else 0)


if __name__ == "__main__":
    main()
