"""Build the Horovod that users would have without Rankroom, into the cache: the benchmarks' peer.

`tools/plain_horovod.py` prints the folder, which goes onto PYTHONPATH. Compiler, flags and
frameworks are those of Rankroom's build; its edits are left out, except those without which Horovod
does not build, or its Python does not run, with current frameworks.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

from rankroom.horovod_build.build import compile_part, default_jobs
from rankroom.horovod_build.cache import cache_folder, keep_folder, lock, scratch, wheel_in
from rankroom.horovod_build.edits.edit import apply, digest
from rankroom.horovod_build.edits.native_edits import PLAIN_NATIVE_EDITS
from rankroom.horovod_build.edits.python_edits import PLAIN_PYTHON
from rankroom.horovod_build.plan import make_plan


def plain_horovod() -> Path:
    """Return the folder with the package `horovod`, built now if it does not exist.

    Raises HorovodBuildError with the cause and the remedy.
    """
    (part,) = make_plan(gpu=False).parts
    part = replace(part, edits=PLAIN_NATIVE_EDITS)
    folder = cache_folder()
    place = folder / "plain" / f"{part.key}.{digest(PLAIN_PYTHON)}"
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder, lambda: _say("wait for another build")):
        if not place.is_dir():
            wheel = wheel_in(folder / "compiled" / part.key)
            if wheel is None:
                wheel = compile_part(part, folder, default_jobs(), lambda phase, percent: None)
            with scratch(folder) as made:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(made / "site")
                apply(made / "site", PLAIN_PYTHON)
                keep_folder(made / "site", place)
        for old in place.parent.glob(f"{part.key}.*"):
            if old != place:
                shutil.rmtree(old, ignore_errors=True)
    return place


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(plain_horovod())
