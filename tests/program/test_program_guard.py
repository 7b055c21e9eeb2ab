"""What a program must not do is refused with the verb to use; time and chance are the run's."""

from __future__ import annotations

from typing import Any

import pytest
from program_kit import files, play

from capataz.contracts.errors import ImpureProgram
from capataz.vm.rehearsal import outcome, run_local
from capataz.vm.zygote import Zygote

IMPURE = {
    "open('x', 'w')": "artifact",
    "open('/etc/passwd')": "step",
    "open('/etc/passwd', 'rb')": "step",
    "__import__('pathlib').Path('x').write_text('a')": "step",
    "__import__('pathlib').Path('/etc/hostname').read_text()": "step",
    "__import__('os').open('/tmp/capataz-x', 1 | 64)": "step",
    "__import__('os').listdir('/etc')": "step",
    "__import__('os').mkdir('/tmp/capataz-x')": "step",
    "__import__('os').remove('/tmp/capataz-x')": "step",
    "__import__('shutil').rmtree('/tmp/capataz-x')": "step",
    "__import__('tempfile').mkdtemp()": "step",
    "__import__('socket').socket()": "step",
    "__import__('socket').getaddrinfo('localhost', 80)": "step",
    "__import__('socket').create_connection(('127.0.0.1', 1))": "step",
    "__import__('urllib.request').request.urlopen('http://127.0.0.1:1')": "step",
    "__import__('subprocess').run(['true'])": "step",
    "__import__('os').system('true')": "step",
    "__import__('os').fork()": "step",
    "__import__('os').kill(1, 0)": "step",
    "__import__('os').execv('/bin/true', ['true'])": "step",
    "__import__('os').posix_spawn('/bin/true', ['true'], {})": "step",
    "__import__('threading').Thread(target=print).start()": "asyncio",
    "__import__('multiprocessing').Process(target=print).start()": "step",
    "__import__('time').sleep(0.01)": "await sleep",
    "input('name?')": "ask",
    "__import__('sqlite3').connect(':memory:')": "step",
    "await asyncio.to_thread(print)": "step",
    "await asyncio.get_running_loop().run_in_executor(None, print)": "step",
    "await asyncio.create_subprocess_exec('true')": "step",
    "await asyncio.create_subprocess_shell('true')": "step",
    "await asyncio.open_connection('127.0.0.1', 1)": "step",
    "await asyncio.start_server(print, '127.0.0.1', 0)": "step",
}


@pytest.mark.parametrize("code", IMPURE)
async def test_refused_with_the_verb(zygote: Zygote, code: str) -> None:
    with pytest.raises(ImpureProgram, match=rf"^audit\.py:10: .*{IMPURE[code]}") as caught:
        await play(zygote, f"\n@program\nasync def main() -> None:\n    {code}\n")
    assert "\n" not in str(caught.value)


async def test_module_level_code_is_program_code(zygote: Zygote) -> None:
    with pytest.raises(ImpureProgram, match=r"^audit\.py:7: open\('x', 'w'\) in a program"):
        await play(zygote, "open('x', 'w')\n@program\nasync def main() -> None: pass\n")


async def test_helper_modules_are_named(zygote: Zygote) -> None:
    closure = files("import helper\n@program\nasync def main() -> None:\n    helper.go()\n", helper="def go():\n    open('y', 'w')\n")
    with pytest.raises(ImpureProgram, match=r"^helper\.py:2: "):
        frame, _ = await run_local(zygote, "audit:main", closure, answer=lambda r: None)
        outcome(frame)


async def test_harmless_things_work(zygote: Zygote) -> None:
    body = """
    import csv, json, re, sqlite3, statistics, textwrap, xml.etree.ElementTree, zoneinfo
    import email.message, html, decimal, fractions, difflib, pprint, logging, warnings
    from datetime import datetime
    @program
    async def main() -> list:
        print("to stderr")
        logging.getLogger("x").warning("also to stderr")
        warnings.warn("and this")
        import colorsys, wave  # late imports read files
        try:
            raise ValueError("x")
        except ValueError:
            import traceback
            traceback.format_exc()
        zone = zoneinfo.ZoneInfo("Europe/Madrid")
        return [json.loads("[1]"), datetime(2024, 7, 1, tzinfo=zone).utcoffset().total_seconds(), list(csv.reader(["a,b"]))]
    """
    assert await play(zygote, body) == [[1], 7200.0, [["a", "b"]]]


CHANCE = """
import os, random, secrets, uuid, time
from datetime import date, datetime, timezone

def draw():
    return [random.random(), random.randint(1, 10**9), random.choice(range(10**6)), random.sample(range(100), 3),
            random.Random().random(), random.SystemRandom().random(), str(uuid.uuid4()), str(uuid.uuid1()), secrets.token_hex(8),
            secrets.randbelow(10**9), os.urandom(4).hex(), random.gauss(0, 1), random.randbytes(3).hex(), random.getrandbits(20)]

def clocks():
    return [time.time(), time.time_ns(), time.monotonic(), time.perf_counter(), datetime.now().isoformat(), datetime.utcnow().isoformat(),
            datetime.now(timezone.utc).isoformat(), datetime.today().isoformat(), date.today().isoformat(), time.strftime("%H:%M:%S"),
            list(time.gmtime())[:6], list(time.localtime())[:6], time.ctime(), asyncio.get_running_loop().time()]
"""


async def test_chance_is_seeded_per_run_and_scope(zygote: Zygote) -> None:
    body = CHANCE + """
@program
async def main(input: int) -> dict:
    async def item(name):
        await run("a", prompt=name)
        return draw()
    out = {"root": draw()}
    with scope("s"):
        out["s"] = draw()
    if input:
        random.seed(input)
        out["again"] = draw()
    a, b = await fan_out(["a", "b"] if input < 2 else ["b", "a"], item, key=str)
    out["a"], out["b"] = (a, b) if input < 2 else (b, a)
    return out
"""
    first = await play(zygote, body, 0)
    assert first == await play(zygote, body, 0)
    flat = [str(v) for draws in first.values() for v in draws]
    assert len(set(flat)) == len(flat)
    # Another order of items, and more numbers drawn outside, leave an item's numbers alone.
    other = await play(zygote, body, 2)
    for name in ("root", "a", "b"):
        del first[name][7], other[name][7]  # uuid1 counts on within the process
        assert other[name] == first[name]


async def test_clocks_are_recorded(zygote: Zygote) -> None:
    body = CHANCE + """
@program
async def main() -> list:
    before = clocks()
    await asyncio.sleep(90)
    return [before, clocks(), type(datetime.now()) is datetime]
"""
    before, after, same = await play(zygote, body)
    assert same is True
    assert before[0] == 1_700_000_000.0 and before[1] == 1_700_000_000 * 10**9 and before[2:4] == [0.0, 0.0]
    assert before[4] == before[5] == before[7] == "2023-11-14T22:13:20"
    assert before[6] == "2023-11-14T22:13:20+00:00" and before[8] == "2023-11-14" and before[9] == "22:13:20"
    assert before[10] == before[11] == [2023, 11, 14, 22, 13, 20] and before[12] == "Tue Nov 14 22:13:20 2023"
    assert after[0] == before[0] + 90 and after[2] == 90.0 and after[13] == 90.0 and after[9] == "22:14:50"
    assert before == (await play(zygote, body))[0]


async def test_the_environment_is_empty(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    body = """
    import os, sys
    @program
    async def main() -> dict:
        return {"env": dict(os.environ), "order": list({"a", "b", "c", "d"}), "threads": len(sys._current_frames())}
    """
    other = await Zygote.start()
    try:
        got: Any = await play(other, body)
    finally:
        await other.close()
    assert set(got["env"]) <= {"PYTHONHASHSEED", "TZ", "LC_ALL"}
    assert got == await play(zygote, body)
    assert got["threads"] == 1
