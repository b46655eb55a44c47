"""Real-time priority: who gets it, who does not, and that it is given back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfdpg

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these priorities")
FILE = Path(tfdpg.__file__).parent / "training/threads.py"
PROGRAM = f"""
import os, runpy, threading
context = runpy.run_path({str(FILE)!r})["real_time_priority"]

def policy():
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK

"""


def run(program):
    result = subprocess.run([sys.executable, "-c", PROGRAM + program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def is_privileged():
    return run("with context() as is_allowed: print(is_allowed)") == ["True"]


def test_threads_that_are_made_have_the_usual_priority_and_it_is_given_back_without_privileges():
    drop = "os.setuid(65534)" if os.geteuid() == 0 else ""
    printed = run(f"""
with context() as is_allowed:
    print(is_allowed, policy() == os.SCHED_FIFO)
    thread = threading.Thread(target=lambda: print(policy() == os.SCHED_OTHER))
    thread.start()
    thread.join()
    {drop}
print(policy() == os.SCHED_OTHER)
""")
    allowed = str(is_privileged())
    assert printed == [allowed, allowed, "True", "True"]


def test_without_permission_nothing_changes_and_errors_are_those_of_the_body():
    drop = "os.setuid(65534)" if os.geteuid() == 0 else ""
    assert run(f"""
{drop}
before = policy()
try:
    with context() as is_allowed:
        assert is_allowed == (policy() != before)
        raise ValueError
except ValueError as error:
    print(error.__context__, policy() == before)
""") == ["None", "True"]


def test_a_higher_priority_is_kept():
    if not is_privileged():
        pytest.skip("real-time priority is not allowed here")
    assert run("""
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(7))
with context() as is_allowed:
    print(is_allowed, policy() == os.SCHED_RR, os.sched_getparam(0).sched_priority)
print(policy() == os.SCHED_RR, os.sched_getparam(0).sched_priority)
""") == ["True", "True", "7", "True", "7"]


def test_a_thread_follows_another_one_to_its_core_while_that_one_sleeps(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    assert run(f"""
import pathlib, time
follower = runpy.run_path({str(FILE)!r})["Follower"](threading.get_native_id())

def learn():
    def follow():
        follower.follow()
        print(*sorted(os.sched_getaffinity(0)))

    follow()
    time.sleep(1.05)
    follow()
    name, *numbers = follower._file.read_text().rpartition(") ")
    numbers = numbers[1].split()
    numbers[11] = str(int(numbers[11]) + 10 * os.sysconf("SC_CLK_TCK"))  # as if it had computed since then
    follower._file = pathlib.Path({str(tmp_path / "stat")!r})
    follower._file.write_text(name + ") " + " ".join(numbers))
    time.sleep(1.05)
    follow()

os.sched_setaffinity(0, [{cores[-1]}])
thread = threading.Thread(target=learn)
thread.start()
os.sched_setaffinity(thread.native_id, {cores})
thread.join()
""") == [str(core) for core in (*cores, cores[-1], *cores)]


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
def test_threads_of_tensorflow_do_not_interrupt_python_on_a_single_core(cores):
    if len(os.sched_getaffinity(0)) < cores:
        pytest.skip("needs two cores")
    printed = run(f"""
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])
import tfdpg

kept = threading.Thread(target=threading.Event().wait, daemon=True)
kept.start()
agent = tfdpg.TD3("Pendulum-v1", hidden_units=(8, 8), start_steps=0, update_after=0)
agent.fit("Pendulum-v1", epochs=1, steps_per_epoch=50, verbose=0)
others = {{int(thread) for thread in os.listdir("/proc/self/task")}} - {{os.getpid(), kept.native_id}}
of_python = {{os.sched_getscheduler(thread) for thread in (0, kept.native_id)}}
print(os.SCHED_BATCH in map(os.sched_getscheduler, others), of_python == {{os.SCHED_OTHER}})
""")
    assert printed == [str(cores == 1), "True"]
