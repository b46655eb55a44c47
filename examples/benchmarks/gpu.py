"""Test tfdpg on a GPU, and measure its updates there and on the CPU. It writes a JSON file and tables in Markdown.

    python examples/benchmarks/gpu.py --out gpu-results                         # everything, in this order
    python examples/benchmarks/gpu.py --out gpu-results --part updates --widths 1024 --batches 2048
    python examples/benchmarks/gpu.py --quick --device cpu:0 --out /tmp/quick   # tries the script without a GPU
    python examples/benchmarks/gpu.py --estimate                                # measures nothing

The parts are

- `tests`: `pytest -m gpu tests/test_gpu.py`;
- `rates`: the FLOP/s of one large matrix product in float32 and in TensorFloat-32 (TF32), and the bytes per second with
  which minibatches reach the device;
- `updates`: updates per second of TD3 with the spaces of HalfCheetah-v5, on one core, on all cores and on the device,
  there with TF32 on and off and with the replay buffer in the memory of the host and of the device (`replay_device`);
- `steps`: steps per second of HalfCheetah-v5 with one update after each step, 256 units and minibatches of 256;
- `train`: `tfdpg train td7 --device gpu:0` for 20,000 steps of HalfCheetah-v5.

Each measurement is saved when it is done. The same command continues where the JSON file ends. The report compares the
time of an update with that of its matrix products at the measured FLOP/s. `--estimate` prints how long updates should
take on a GPU and on one core, from the assumptions in `ASSUMED`.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pinned

OBS_DIM, ACT_DIM = 17, 6
POLICY_DELAY = 2
CHUNK = 50
"""Updates in one call, the number that `fit` makes by default."""
PARTS = "tests", "rates", "updates", "steps", "train"
COMPARED = 1024, 2048
"""The width and the size of minibatches for which the report compares the device with one core."""

ASSUMED = {
    "GPU, FLOP/s in float32": 4e13,
    "one core, FLOP/s": 1.5e11,
    "bytes per second to the GPU": 1e10,
    "seconds of the kernels' starts in an update": 3e-4,
    "seconds of a call": 5e-4,
    "seconds to pack a row": 2.4e-7,
    "seconds to choose a row": 4e-8,
}
"""The assumptions of `estimate`. Those about rows are from one core of a server, with a million rows."""
Record = dict[str, Any]
"""One measurement: what was measured, and the numbers."""


class Product(NamedTuple):
    """A product of matrices `[m, k]` and `[k, n]`, and how often an update computes it on average."""

    m: int
    k: int
    n: int
    times: float = 1.0

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.k * self.n * self.times


def matrix_products(width: int, batch: int, policy_delay: int = POLICY_DELAY) -> list[Product]:
    """Return the matrix products of an update of TD3 with two hidden layers and two critics.

    The policy is updated in every `policy_delay`-th update. The gradients of a layer with one output need no matrix
    product.
    """
    pi = (OBS_DIM, width), (width, width), (width, ACT_DIM)
    critic = (OBS_DIM + ACT_DIM, width), (width, width), (width, 1)
    share = 1 / policy_delay

    def forward(layers: Sequence[tuple[int, int]], times: float = 1.0) -> list[Product]:
        return [Product(batch, i, o, times) for i, o in layers]

    def by_weights(layers: Sequence[tuple[int, int]], times: float = 1.0) -> list[Product]:
        return [Product(i, batch, o, times) for i, o in layers if o > 1]

    def by_inputs(layers: Sequence[tuple[int, int]], times: float = 1.0) -> list[Product]:
        return [Product(batch, o, i, times) for i, o in layers if o > 1]

    target = [*forward(pi), *forward(critic, 2)]
    critics = [*forward(critic, 2), *by_weights(critic, 2), *by_inputs(critic[1:], 2)]
    policy = [*forward(pi, share), *forward(critic, share), *by_inputs(critic, share)]
    policy += [*by_weights(pi, share), *by_inputs(pi[1:], share)]
    return target + critics + policy


def flops(width: int, batch: int, policy_delay: int = POLICY_DELAY) -> float:
    """Return the floating-point operations of the matrix products of an update."""
    return sum(product.flops for product in matrix_products(width, batch, policy_delay))


def bytes_sent(batch: int, on_device: bool) -> int:
    """Return the bytes that are sent to the device for an update."""
    return batch * (2 * 8 + 3 * 4 if on_device else 4 * (2 * OBS_DIM + ACT_DIM + 3))


def estimate(width: int, batch: int, on_device: bool) -> float:
    """Estimate the seconds of an update on a GPU, if nothing overlaps and a call makes `CHUNK` updates."""
    rows = batch * ASSUMED["seconds to choose a row" if on_device else "seconds to pack a row"]
    sent = bytes_sent(batch, on_device) / ASSUMED["bytes per second to the GPU"]
    computed = flops(width, batch) / ASSUMED["GPU, FLOP/s in float32"]
    starts = ASSUMED["seconds of the kernels' starts in an update"] + ASSUMED["seconds of a call"] / CHUNK
    return rows + sent + computed + starts


def estimate_on_core(width: int, batch: int) -> float:
    """Estimate the seconds of an update on one core."""
    return flops(width, batch) / ASSUMED["one core, FLOP/s"] + batch * ASSUMED["seconds to pack a row"]


def estimates(widths: Sequence[int], batches: Sequence[int]) -> str:
    """Return the estimated milliseconds of an update as a table in Markdown."""
    columns = "GFLOP", "one core, ms", "GPU, ms", "GPU, `replay_device`, ms", "times as fast as one core"
    lines = [f"| width | batch | {' | '.join(columns)} |", "|---:" * (2 + len(columns)) + "|"]
    for width in sorted(widths):
        for batch in sorted(batches):
            core, host, device = estimate_on_core(width, batch), *(estimate(width, batch, on) for on in (False, True))
            numbers = [flops(width, batch) / 1e9, *(1e3 * each for each in (core, host, device)), core / device]
            cells = " | ".join(f"{number:,.2g}" if number < 100 else f"{number:,.0f}" for number in numbers)
            lines.append(f"| {width} | {batch:,} | {cells} |")
    return "\n".join(lines)


# What runs in processes of its own, and prints a record on each line.


def filled_agent(width: int, batch: int, device: str, replay_device: str | None, rows: int) -> Any:
    """Return an agent whose replay buffer has random transitions."""
    import numpy as np
    from gymnasium import spaces

    import tfdpg

    spec = tfdpg.Spec(spaces.Box(-np.inf, np.inf, (OBS_DIM,)), spaces.Box(-1, 1, (ACT_DIM,)))
    sizes = {"hidden_units": (width, width), "batch_size": batch, "replay_size": max(rows, 1000)}
    agent = tfdpg.TD3(spec, **sizes, device=device, replay_device=replay_device, update_every=CHUNK)
    rng = np.random.default_rng(0)
    envs = np.arange(100)
    agent.replay.begin(envs, (rng.normal(size=(100, OBS_DIM)),))
    for _ in range(rows // 100 - 1):
        actions = rng.uniform(-1, 1, (100, ACT_DIM))
        agent.replay.add(envs, actions, np.zeros(100), np.zeros(100), (rng.normal(size=(100, OBS_DIM)),))
    return agent


def measure_updates(arguments: argparse.Namespace) -> Iterator[Record]:
    """Measure updates per second, including sampling, for each width and batch size."""
    import tensorflow as tf

    device = arguments.device
    rate = ASSUMED["one core, FLOP/s"] * len(os.sched_getaffinity(0))
    for width, batch in arguments.sizes:
        record: Record = {"width": width, "batch": batch}
        if arguments.is_slow and flops(width, batch) / rate > arguments.limit:
            yield record | {"left_out": f"an update takes more than about {arguments.limit:g} s"}
            continue
        if device.startswith("gpu"):
            tf.config.experimental.reset_memory_stats(device)
        agent = filled_agent(width, batch, device, device if arguments.on_device else None, arguments.rows)
        with agent.learner.flat_state(True):
            seconds = seconds_of_updates(agent.learner.run_update_phase, arguments.seconds)
        yield record | {"updates_per_second": 1 / seconds} | memory(device)
        del agent


def seconds_of_updates(make: Callable[[int], Any], seconds: float) -> float:
    """Return the median seconds of an update, from calls that take `seconds` together, at least three."""
    began = time.perf_counter()
    make(POLICY_DELAY)  # compiles
    compiled = time.perf_counter()
    make(POLICY_DELAY)
    one = (time.perf_counter() - compiled) / POLICY_DELAY
    count = min(CHUNK, max(POLICY_DELAY, POLICY_DELAY * round(seconds / 5 / one / POLICY_DELAY)))
    print(f"compiled in {compiled - began:.1f} s", file=sys.stderr)
    measured = []
    while len(measured) < 3 or sum(measured) < seconds:
        began = time.perf_counter()
        make(count)
        measured.append(time.perf_counter() - began)
    return statistics.median(measured) / count


def memory(device: str) -> Record:
    """Return the peak memory of the device, and of the process on the host."""
    import tensorflow as tf

    on_device = {}
    if device.startswith("gpu"):
        on_device = {"peak_device_bytes": tf.config.experimental.get_memory_info(device)["peak"]}
    return on_device | {"peak_host_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def measure_rates(arguments: argparse.Namespace) -> Iterator[Record]:
    """Measure the FLOP/s of one large matrix product, and the bytes per second to the device."""
    import numpy as np
    import tensorflow as tf

    n = 256 if arguments.quick else 8192
    with tf.device(arguments.device):
        x = tf.random.normal((n, n))
        multiply = tf.function(lambda x: tf.reduce_sum(x @ x), jit_compile=True)
        seconds = median_seconds(lambda: multiply(x).numpy(), arguments.seconds)
        chunk = np.zeros((CHUNK, 2048, 2 * OBS_DIM + ACT_DIM + 3), np.float32)
        receive = tf.function(lambda part: part[0, 0, 0], jit_compile=True)
        sent = median_seconds(lambda: receive(tf.constant(chunk)).numpy(), arguments.seconds)
        empty = median_seconds(lambda: receive(tf.constant(chunk[:1, :1])).numpy(), arguments.seconds)
    yield {
        "size": n,
        "flops_per_second": 2 * n**3 / seconds,
        "bytes_per_second": chunk.nbytes / max(sent - empty, 1e-9),
        "seconds_of_a_call": empty,
    }


def median_seconds(call: Callable[[], Any], seconds: float) -> float:
    """Return the median seconds of a call, of at least three after one that compiles."""
    call()
    measured = []
    while len(measured) < 3 or sum(measured) < seconds:
        began = time.perf_counter()
        call()
        measured.append(time.perf_counter() - began)
    return statistics.median(measured)


def measure_steps(arguments: argparse.Namespace) -> Iterator[Record]:
    """Measure the environment steps per second with one update after each step."""
    import gymnasium as gym

    import tfdpg

    width, batch, steps = (16, 8, 200) if arguments.quick else (256, 256, 3000)
    env = gym.make("HalfCheetah-v5")
    sizes = {"hidden_units": (width, width), "batch_size": batch, "replay_size": 100_000}
    place = {"device": arguments.device, "replay_device": arguments.device if arguments.on_device else None}
    agent = tfdpg.TD3(env, **sizes, **place, start_steps=batch, update_after=batch, update_every=1)
    with warnings.catch_warnings(action="ignore"):  # about short training
        agent.fit(env, epochs=1, steps_per_epoch=steps // 3, verbose=0)
        began = time.perf_counter()
        agent.fit(env, epochs=1, steps_per_epoch=steps, verbose=0)
    yield {"width": width, "batch": batch, "steps_per_second": steps / (time.perf_counter() - began)}


def measure_train(arguments: argparse.Namespace) -> Iterator[Record]:
    """Run `tfdpg train td7`, and measure its time and memory."""
    from tfdpg import cli

    steps, first = (300, 100) if arguments.quick else (20_000, 5000)
    sizes = "--hidden-units 16 --encoder-units 16 --embedding-units 16 --batch-size 8" if arguments.quick else ""
    with tempfile.TemporaryDirectory() as directory:
        words = f"train td7 --env HalfCheetah-v5 --epochs 1 --steps-per-epoch {steps} --start-steps {first} {sizes}"
        words += (
            f" --update-after {first} --validation-episodes 1 --run-dir {directory}/run --device {arguments.device}"
        )
        began = time.perf_counter()
        status = cli.main(words.split())
    if status:
        sys.exit(status)
    yield {"steps": steps, "seconds": time.perf_counter() - began} | memory(arguments.device)


MEASURES = {"rates": measure_rates, "updates": measure_updates, "steps": measure_steps, "train": measure_train}


def run_child(arguments: argparse.Namespace) -> None:
    """Measure in this process, and print each record."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(arguments.tf32)
    for record in MEASURES[arguments.child](arguments):
        print("RECORD", json.dumps(record), flush=True)


# The parent.


def places(part: str, device: str) -> list[Record]:
    """Return where a part is measured: the name of the place, TF32, and whether the replay buffer is on the device."""
    cpus = [{"place": "one core"}, {"place": "all cores"}]
    if part == "rates":
        return [{"place": device, "tf32": tf32} for tf32 in (True, False)]
    if part == "train":
        return [{"place": device, "tf32": True}, {"place": "all cores"}]
    both = [True, False] if part == "updates" else [True]
    return [
        *({"place": device, "tf32": tf32, "replay": where} for tf32 in both for where in ("host", "device")),
        *cpus,
    ]


def missing(records: Sequence[Record], part: str, place: Record, arguments: argparse.Namespace) -> list[Record]:
    """Return what was not measured yet: one record for a part, or one for each width and batch size of updates."""
    wanted: list[Record] = [{"part": part} | place]
    if part == "updates":
        sizes = [{"width": width, "batch": batch} for width in arguments.widths for batch in arguments.batches]
        wanted = [{"part": part} | place | size for size in sizes]
    return [each for each in wanted if not any(each.items() <= record.items() for record in records)]


def measure(
    part: str, place: Record, wanted: Sequence[Record], arguments: argparse.Namespace, save: Callable[[Record], None]
) -> None:
    """Measure what is wanted of a part at a place in a process of its own, and save its records."""
    is_cpu = place["place"].endswith(("core", "cores"))
    every = sorted(os.sched_getaffinity(0))
    cores = every[:1] if place["place"] == "one core" else every
    words = ["--child", part, "--device", "cpu:0" if is_cpu else arguments.device, "--seconds", str(arguments.seconds)]
    words += ["--limit", str(arguments.limit), "--rows", str(arguments.rows)]
    words += [name for name, given in (("--quick", arguments.quick), ("--is-slow", is_cpu)) if given]
    words += ["--tf32"] if place.get("tf32") else []
    words += ["--on-device"] if place.get("replay") == "device" else []
    environment = os.environ | dict.fromkeys(pinned.THREADS, str(len(cores))) | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {"TF_NUM_INTRAOP_THREADS": str(len(cores)), "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    environment |= {"CUDA_VISIBLE_DEVICES": "-1"} if is_cpu else {}
    words += ["--sizes", *(f"{each['width']}x{each['batch']}" for each in wanted)] if part == "updates" else []
    os.sched_setaffinity(0, cores)  # inherited by the process
    try:
        process = subprocess.Popen(
            [sys.executable, __file__, *words], env=environment, stdout=subprocess.PIPE, text=True
        )
    finally:
        os.sched_setaffinity(0, every)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("RECORD "):
            save({"part": part} | place | json.loads(line.removeprefix("RECORD ")))
    if process.wait():
        save({"part": part} | place | {"failed": f"exit status {process.returncode}"})


def run_tests(save: Callable[[Record], None]) -> None:
    """Run the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "gpu", "--durations=0", "tests/test_gpu.py"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}  # the processes that the tests start see the GPU
    began = time.perf_counter()
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    print(done.stdout, done.stderr, file=sys.stderr)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    save({"part": "tests", "status": done.returncode, "said": last, "seconds": time.perf_counter() - began})


# The report.


def of(records: Sequence[Record], **wanted: Any) -> list[Record]:
    """Return the records with these values."""
    return [record for record in records if wanted.items() <= record.items()]


def named(record: Record, device: str) -> str:
    """Return the name of a column."""
    if record["place"] != device:
        return record["place"]
    replay = f", replay on {record['replay']}" if "replay" in record else ""
    return f"{device}, TF32 {'on' if record['tf32'] else 'off'}{replay}"


def table(records: Sequence[Record], device: str) -> str:
    """Return updates per second as a table in Markdown, one row for each width and batch size."""
    measured = of(records, part="updates")
    columns = list(dict.fromkeys(named(record, device) for record in measured if "width" in record))
    rows: dict[tuple[int, int], dict[str, str]] = {}
    for record in measured:
        if "width" in record:
            speed = record.get("updates_per_second")
            cell = "" if speed is None else f"{speed:,.3g}" if speed < 1000 else f"{speed:,.0f}"
            rows.setdefault((record["width"], record["batch"]), {})[named(record, device)] = cell
    lines = [f"| width | batch | GFLOP | {' | '.join(columns)} |", "|---:" * (3 + len(columns)) + "|"]
    for (width, batch), cells in sorted(rows.items()):
        values = " | ".join(cells.get(column, "") for column in columns)
        lines.append(f"| {width} | {batch:,} | {flops(width, batch) / 1e9:,.3g} | {values} |")
    return "\n".join(lines)


def verdicts(records: Sequence[Record], device: str, size: tuple[int, int] = COMPARED) -> list[str]:
    """Return what the measurements say about the three questions of docs/speed.md, "On a GPU"."""
    sizes = dict(zip(("width", "batch"), size, strict=True))
    lines = []
    speeds = {
        named(record, device): record["updates_per_second"]
        for record in of(records, part="updates", **sizes)
        if "updates_per_second" in record
    }
    there = {name: speed for name, speed in speeds.items() if name.startswith(device)}
    where = f"{size[0]}², batch {size[1]:,}"
    if there and "one core" in speeds:
        best = max(there, key=there.__getitem__)
        ratio = there[best] / speeds["one core"]
        lines.append(f"{where}: {best} is {ratio:.3g} times as fast as one core ({_reached(ratio >= 20)} of 20).")
    for rate in of(records, part="rates", place=device):
        kind = f"{device}, TF32 {'on' if rate['tf32'] else 'off'}"
        fastest = max((speed for name, speed in there.items() if name.startswith(kind)), default=None)
        if fastest is not None and "flops_per_second" in rate:
            limit = flops(*size) / rate["flops_per_second"]
            ratio = 1 / fastest / limit
            lines.append(
                f"{where}: with {kind}, an update takes {ratio:.3g} times as long as its matrix products at "
                f"{rate['flops_per_second'] / 1e12:.3g} TFLOP/s ({_reached(ratio <= 3)} of at most 3)."
            )
    steps = {
        named(record, device): record["steps_per_second"]
        for record in of(records, part="steps")
        if "steps_per_second" in record
    }
    on_cpu = max((speed for name, speed in steps.items() if not name.startswith(device)), default=None)
    on_gpu = max((speed for name, speed in steps.items() if name.startswith(device)), default=None)
    if on_cpu is not None and on_gpu is not None:
        advice = "no slower than" if on_gpu >= on_cpu else "slower than: stay on"
        lines.append(
            f"One update after each step: {on_gpu:,.0f} steps/s on {device}, {advice} the CPU ({on_cpu:,.0f} steps/s)."
        )
    return lines


def _reached(is_reached: bool) -> str:
    return "reaches the goal" if is_reached else "misses the goal"


def report(records: Sequence[Record], device: str) -> str:
    """Return the whole report in Markdown."""
    others = [record for record in records if record["part"] != "updates" or "width" not in record]
    lines = ["# Measurements", "", table(records, device), "", "Updates per second of TD3, including sampling.", ""]
    lines += [f"- {line}" for line in verdicts(records, device)]
    lines += ["", *(f"- `{json.dumps(record)}`" for record in others)]
    peaks = [record for record in of(records, part="updates") if "peak_device_bytes" in record]
    if peaks:
        worst = max(peaks, key=lambda record: record["peak_device_bytes"])
        lines += [
            f"- The highest peak of the device's memory, {worst['peak_device_bytes'] / 1e6:,.0f} MB: "
            f"{named(worst, device)}, width {worst['width']}, batch {worst['batch']:,}."
        ]
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--part", choices=PARTS, action="append", help="what to do; the default is all")
    made.add_argument("--out", type=Path, default=Path("gpu-results"), help="writes OUT.json and OUT.md")
    made.add_argument("--device", default="gpu:0", help="the device to measure; cpu:0 tries the script")
    made.add_argument("--widths", type=pinned.count, nargs="+", help="default: 64 256 1024 2048")
    made.add_argument("--batches", type=pinned.count, nargs="+", help="default: 256 2048 16384")
    made.add_argument("--seconds", type=float, help="seconds of each measurement; default: 2")
    made.add_argument("--limit", type=float, default=10.0, help="leave out updates that take more seconds on the CPU")
    made.add_argument("--rows", type=pinned.count, help="rows of the replay buffer; default: 1,000,000")
    made.add_argument("--quick", action="store_true", help="tiny networks, to try the script")
    made.add_argument("--estimate", action="store_true", help="print estimates, and measure nothing")
    made.add_argument("--child", choices=MEASURES, help=argparse.SUPPRESS)
    made.add_argument("--sizes", type=lambda text: tuple(map(int, text.split("x"))), nargs="+", help=argparse.SUPPRESS)
    for name in ("--tf32", "--on-device", "--is-slow"):
        made.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    return made


def with_defaults(arguments: argparse.Namespace) -> argparse.Namespace:
    """Fill in the sizes that were not given."""
    quick = arguments.quick
    arguments.widths = arguments.widths or ([16] if quick else [1024, 256, 64, 2048])
    arguments.batches = arguments.batches or ([8, 32] if quick else [2048, 256, 16384])
    arguments.seconds = arguments.seconds or (0.1 if quick else 2.0)
    arguments.rows = arguments.rows or (1000 if quick else 1_000_000)
    return arguments


def main() -> None:
    """Run the parts that the JSON file does not have yet, and write the report."""
    arguments = with_defaults(parser().parse_args())
    if arguments.child:
        run_child(arguments)
        return
    if arguments.estimate:
        print(estimates(arguments.widths, arguments.batches))
        return
    file = arguments.out.with_suffix(".json")
    records: list[Record] = json.loads(file.read_text()) if file.exists() else []

    def save(record: Record) -> None:
        print(json.dumps(record), flush=True)
        records.append(record)
        file.write_text(json.dumps(records, indent=1))
        arguments.out.with_suffix(".md").write_text(report(records, arguments.device))

    for part in arguments.part or PARTS:
        if part == "tests":
            if not of(records, part="tests"):
                run_tests(save)
            continue
        for place in places(part, arguments.device):
            if wanted := missing(records, part, place, arguments):
                measure(part, place, wanted, arguments, save)
    print(report(records, arguments.device))


if __name__ == "__main__":
    main()
