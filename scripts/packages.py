"""What scripts/release has built: libraries for wheels, and packages of the extension.

    libraries OUT [--cross SYSROOT HEADERS]    the core and the relay; prints the wheel's platform
    extension OUT PG_CONFIG…                   staged files of each major, to be packed
    deb STAGED DIST, rpm STAGED DIST           one package of a staged extension
    sums DIST                                  SHA256SUMS

Everything is dated SOURCE_DATE_EPOCH, and no path of this machine is in it: what is built twice
is the same twice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from headgate.budgets.native.library import CORE, Recipe, compile_to
from headgate.budgets.pgext.build import (
    EXTENSION,
    build_extension,
    headers_version,
    read_pg_config,
)
from headgate.errors import HeadgateError
from headgate.proxy.memory import RELAY
from headgate.version import VERSION

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "deploy" / "packages"
CROSS = "aarch64-linux-gnu"
FLOOR = (2, 34)
"""The oldest glibc beside an OpenSSL 3: that of RHEL 9. Debian 12 and Ubuntu 22.04 have more."""
DEB_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def libraries(out: Path, cross: list[Path]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    built = []
    for recipe in (CORE, RELAY):
        sources = [
            path for folder in recipe.folders for path in sorted((ROOT / folder).glob("*.c"))
        ]
        target = out / f"{recipe.name}.so"
        compile_to(target, sources, _released(recipe, cross), f"{CROSS}-gcc" if cross else None)
        built.append(target)
    needed = glibc_of(*built)
    if needed > FLOOR:
        print(
            f"warning: built with the glibc of this machine, these libraries need {_dotted(needed)}"
            f" instead of {_dotted(FLOOR)}: build on Debian 12 for RHEL 9, Debian 12, Ubuntu 22.04",
            file=sys.stderr,
        )
    machine = CROSS.split("-")[0] if cross else platform.machine()
    print(f"manylinux_{needed[0]}_{needed[1]}_{machine}")


def _released(recipe: Recipe, cross: list[Path]) -> Recipe:
    """Without paths of this machine; by another compiler's headers and libraries."""
    flags, linked = [f"-ffile-prefix-map={ROOT}=."], []
    if cross:
        sysroot, foreign = cross
        flags += [f"--sysroot={sysroot}", f"-I{foreign}/usr/include"]
        flags += [f"-I{foreign}/usr/include/{CROSS}"]
        linked += [f"-L{foreign}/usr/lib/{CROSS}"]
    return replace(recipe, flags=(*recipe.flags, *flags), linked=(*recipe.linked, *linked))


def glibc_of(*paths: Path) -> tuple[int, int]:
    """The oldest glibc that has all that these files want of it."""
    said = _run("readelf", "-VW", *paths)
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", said)
    return max((int(major), int(minor)) for major, minor in found)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def extension(out: Path, pg_configs: list[Path]) -> None:
    """OUT/MAJOR: pg_headgate.so, the control file, the SQL, and about.json."""
    for pg_config in pg_configs:
        config = read_pg_config(pg_config)
        print(f"    Postgres {config.major}: {config.version}", file=sys.stderr)
        staged, work = out / str(config.major), out / f"{config.major}.build"
        for folder in (staged, work):
            shutil.rmtree(folder, ignore_errors=True)
        staged.mkdir(parents=True)
        library = build_extension(pg_config, work)
        shutil.copy(library, staged)
        for path in (*(work / EXTENSION).glob("*.control"), *(work / EXTENSION).glob("*.sql")):
            shutil.copy(path, staged)
        about = {
            "MAJOR": str(config.major),
            "VERSION": VERSION,
            "GLIBC": _dotted(glibc_of(library)),
            "BUILT_WITH": headers_version(config),
        }
        (staged / "about.json").write_text(json.dumps(about))
        shutil.rmtree(work)


def deb(staged: Path, dist: Path) -> None:
    about = _about(staged)
    major, name = about["MAJOR"], f"postgresql-{about['MAJOR']}-headgate"
    architecture = DEB_ARCHITECTURES[platform.machine()]
    tree = _tree(
        staged,
        "deb",
        {
            f"usr/lib/postgresql/{major}/lib": ["*.so"],
            f"usr/share/postgresql/{major}/extension": ["*.control", "*.sql"],
            f"usr/share/doc/{name}": [],
        },
    )
    shutil.copy(ROOT / "LICENSE", tree / "usr/share/doc" / name / "copyright")
    kilobytes = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 1024 + 1
    about |= {"ARCHITECTURE": architecture, "KILOBYTES": str(kilobytes)}
    (tree / "DEBIAN").mkdir()
    _fill("control", about, tree / "DEBIAN" / "control")
    _fill("before-removal", about, tree / "DEBIAN" / "prerm", mode=0o755)
    _date(tree)
    target = dist / f"{name}_{VERSION}-1_{architecture}.deb"
    _run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, target)
    print(target.name)


def rpm(staged: Path, dist: Path) -> None:
    about = _about(staged)
    prefix, licenses = (
        f"usr/pgsql-{about['MAJOR']}",
        f"usr/share/licenses/pg_headgate_{about['MAJOR']}",
    )
    tree = _tree(
        staged,
        "rpm",
        {
            f"{prefix}/lib": ["*.so"],
            f"{prefix}/share/extension": ["*.control", "*.sql"],
            licenses: [],
        },
    )
    shutil.copy(ROOT / "LICENSE", tree / licenses)
    _date(tree)
    work = staged / "rpmbuild"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    listed = sorted(f"/{path.relative_to(tree)}" for path in tree.rglob("*") if path.is_file())
    about |= {
        "FILES": str(tree),
        "BEFORE_REMOVAL": str(work / "before-removal"),
        "LISTED": "\n".join(["%defattr(-,root,root,-)", *listed]),
    }
    _fill("before-removal", about, work / "before-removal")
    _fill("pg_headgate.spec", about, work / "pg_headgate.spec")
    dates = (
        "_buildhost headgate",
        "use_source_date_epoch_as_buildtime 1",
        "clamp_mtime_to_source_date_epoch 1",
        f"_topdir {work}",
        "_binary_payload w6.xzdio",
        "_build_name_fmt %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
        f"_rpmdir {dist.resolve()}",
        f"_dbpath {work}/db",
    )
    defined = [word for one in dates for word in ("--define", one)]
    _run(
        "rpmbuild",
        "-bb",
        "--quiet",
        "--target",
        platform.machine(),
        *defined,
        work / "pg_headgate.spec",
    )
    print(f"pg_headgate_{about['MAJOR']}-{VERSION}-1.{platform.machine()}.rpm")


def _about(staged: Path) -> dict[str, str]:
    about: dict[str, str] = json.loads((staged / "about.json").read_text())
    return about


def _tree(staged: Path, kind: str, places: dict[str, list[str]]) -> Path:
    tree = staged / kind
    shutil.rmtree(tree, ignore_errors=True)
    for place, patterns in places.items():
        (tree / place).mkdir(parents=True)
        for path in (path for pattern in patterns for path in sorted(staged.glob(pattern))):
            shutil.copy(path, tree / place)
            (tree / place / path.name).chmod(0o644)
    return tree


def _fill(template: str, about: dict[str, str], target: Path, mode: int = 0o644) -> None:
    text = (TEMPLATES / template).read_text()
    target.write_text(re.sub(r"@([A-Z_]+)@", lambda found: about[found[1]], text))
    target.chmod(mode)


def _date(tree: Path) -> None:
    """And the modes that a package has, whatever this user's are."""
    at = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in (tree, *tree.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (at, at))


def sums(dist: Path) -> None:
    """Sorted by name, in the form that `sha256sum --check` takes."""
    files = sorted(path for path in dist.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (dist / "SHA256SUMS").write_text("".join(lines))


def _run(*command: str | Path) -> str:
    """Its output; its errors, where it fails."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise HeadgateError(f"there is no {command[0]} on this machine") from None
    except subprocess.CalledProcessError as error:
        raise HeadgateError(f"{command[0]} failed:\n{error.stdout}{error.stderr}") from None
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    what = parser.add_subparsers(dest="what", required=True)
    one = what.add_parser("libraries")
    one.add_argument("out", type=Path)
    one.add_argument("--cross", type=Path, nargs=2, default=[])
    one = what.add_parser("extension")
    one.add_argument("out", type=Path)
    one.add_argument("pg_configs", type=Path, nargs="+")
    for name in ("deb", "rpm"):
        one = what.add_parser(name)
        one.add_argument("staged", type=Path)
        one.add_argument("dist", type=Path)
    what.add_parser("sums").add_argument("dist", type=Path)
    given = vars(parser.parse_args())
    try:
        globals()[given.pop("what")](**given)
    except HeadgateError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
