"""The benchmark of the tools: sandbox starts, commands by each way, kernels; in this order, on one keeper."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prorl_celery import folders
from prorl_celery.bench.report import Report, median
from prorl_celery.bench.sizes import Sizes
from prorl_celery.bench.tools import floor, kernels, ours, subprocesses, table
from prorl_celery.bench.tools.starts import starts
from prorl_celery.bench.tools.swerex import lacks_swerex, swerex
from prorl_celery.bench.tools.tmux import lacks_tmux, tmux
from prorl_celery.bench.tools.ways import COMMANDS, Opening, Row, in_turns

Ways = Sequence[tuple[Row, Opening]]


def tools(sizes: Sizes) -> Report:
    """All of it. Leaves nothing behind."""
    report = Report("tools", 1)
    with ours.place() as place, folders.temporary("bench") as empty:
        starts(report, place, sizes)
        table.commands(report, _commands(report, place, str(empty.path), sizes))
        report.part("first cells", table.FIRST_CELL, lambda r: _first_cells(r, place, sizes))
        table.kernels(report, _kernels(report, place, str(empty.path), sizes))
    return report


def _commands(report: Report, place: ours.Place, empty: str, sizes: Sizes) -> list[Row]:
    """A row for each way: terminals held open, in turns; a process for each command; others' sessions."""
    rows: list[Row] = []

    def take(
        what: str, ways: Sequence[tuple[Row, Opening]], count: int, rarer: int = 0, *, output: bool = True
    ) -> None:
        rows.extend(row for row, _ in ways)
        counts = {command: rarer or count for command in COMMANDS} | {"true": count}
        report.part(what, (), lambda r: in_turns(r, ways, counts, output=output))

    def ours_in(kind: str) -> tuple[Row, Opening]:
        row = Row(f"bash_{kind}", f"ours, {kind}", lacks=place.lacks.get(kind))
        return row, lambda: ours.bash(place.keeper, place.specs[kind])

    bare: tuple[Row, Opening] = (Row("raw_pty", "raw pty"), partial(floor.raw_pty, empty))
    terminals = [*map(ours_in, ("bwrap", "singularity", "local")), bare]
    take("terminals held open, in turns", terminals, sizes.commands, sizes.commands // 5)

    processes: list[tuple[Row, Opening]] = [
        (Row("subprocess", "bash -c"), partial(subprocesses.on_the_host, empty)),
        (Row("subprocess_bwrap", "bwrap bash -c"), partial(subprocesses.in_bwrap, empty)),
    ]
    take("a process for each command", processes, sizes.subprocess_commands)
    container = Row("subprocess_singularity", "singularity exec", lacks=place.lacks.get("singularity"))
    opening: Opening = lambda: subprocesses.in_singularity(place.specs["singularity"].image or "", place.user)  # noqa: E731
    take("a container for each command", [(container, opening)], sizes.container_commands)

    rows.append(session := Row("swerex", "SWE-ReX", lacks=lacks_swerex()))
    if session.lacks is None:
        report.part("SWE-ReX", (), lambda _: swerex(session, sizes.swerex_commands, sizes.slow_output_s))
    pane = Row("tmux", "tmux", lacks=lacks_tmux())
    take("tmux", [(pane, partial(tmux, empty))], sizes.tmux_commands, output=sizes.slow_output_s > 0)
    return rows


def _kernels(report: Report, place: ours.Place, empty: str, sizes: Sizes) -> list[Row]:
    """A row for each way to a kernel; the gateway's is slow, and apart."""
    held: Ways = [
        (Row("kernel_ipc", "ours, bwrap, ipc"), lambda: kernels.ours(place)),
        (Row("kernel_bare_ipc", "jupyter_client, host, ipc"), partial(kernels.bare, "ipc", empty)),
        (Row("kernel_tcp", "jupyter_client, host, tcp"), partial(kernels.bare, "tcp", empty)),
    ]
    report.part("kernels, in turns", (), lambda r: in_turns(r, held, {kernels.CELL: sizes.cells}, output=False))
    gateway = Row("kernel_gateway", "gateway, WebSocket", lacks=kernels.lacks_gateway())
    apart: Ways = [(gateway, partial(kernels.gateway, empty))]
    cells = {kernels.CELL: sizes.gateway_cells}
    report.part("a kernel gateway", (), lambda r: in_turns(r, apart, cells, output=False))
    return [row for row, _ in [*held, *apart]]


def _first_cells(report: Report, place: ours.Place, sizes: Sizes) -> None:
    kernels.first_cell_ms(place)  # this process loads ZeroMQ for it, and the keeper copies packages
    report.figures[table.FIRST_CELL[0]] = median([kernels.first_cell_ms(place) for _ in range(sizes.first_cells)])
