"""python -m hf_ess, which launchers of several processes start."""

import subprocess
import sys

import hf_ess


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "hf_ess", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.strip() == f"hf-ess {hf_ess.__version__}"


def test_exit_status_is_that_of_the_console_script():
    command = [sys.executable, "-m", "hf_ess", "probe", "demo:llama"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("hf-ess: give the text one way") and "Traceback" not in done.stderr
