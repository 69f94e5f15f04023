"""What was seen of the ways, as tables and as figures by their fixed names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prorl_celery.bench.report import Report, Table, median, percentile
from prorl_celery.bench.tools.kernels import CELL
from prorl_celery.bench.tools.ways import COMMANDS, Row

MB = 1e6
OURS, FLOOR = "bash_bwrap", "raw_pty"
RATIOS = {
    "ratio_to_raw_pty": (OURS, FLOOR),
    "swerex_over_ours": ("swerex", OURS),
    "tmux_over_ours": ("tmux", OURS),
    "subprocess_over_ours": ("subprocess", OURS),
    "subprocess_bwrap_over_ours": ("subprocess_bwrap", OURS),
    "subprocess_singularity_over_ours": ("subprocess_singularity", OURS),
}
"""Of the medians of `true` (of `1+1`): which way's over which other's."""
KERNEL_RATIOS = {"kernel_over_bare": ("kernel_ipc", "kernel_bare_ipc")}
FIRST_CELL = ("warm_first_cell_ms",)
OUTPUT_FIGURES = ("output_10mb_s", "output_10mb_rss_mb")


def commands(report: Report, rows: Sequence[Row]) -> None:
    """The ways side by side, and their figures; those of a way that was given up are absent for its reason."""
    columns = ["way"]
    for command in COMMANDS:
        columns += [name := command.split()[0], f"{name} p95"]
    lines = [[row.label, *_medians(row), row.start_ms, _moved(row)] for row in rows]
    title = f"{', '.join(COMMANDS)}: ms, median and p95; start: ms to the end of a first command; MB moved: see below"
    report.tables.append(Table(title, [*columns, "start", "MB moved"], lines))
    report.tables.append(
        Table(
            "10 MB of output: s; MB read by our process and copied in it, together MB moved; growth of its memory",
            ["way", "s", "MB read", "MB copied", "MB grown"],
            [[row.label, *_output(row)] for row in rows],
        )
    )
    for row in rows:
        _figures(report, row, "true")
        if row.key == OURS and row.output is not None:
            report.figures["output_10mb_s"] = row.output.seconds
            report.figures["output_10mb_rss_mb"] = row.output.grown_bytes / MB
    _ratios(report, RATIOS)
    report.lack(OUTPUT_FIGURES, next((row.lacks for row in rows if row.key == OURS), None) or "not taken")


def kernels(report: Report, rows: Sequence[Row]) -> None:
    """The ways to a kernel side by side, and their figures."""
    lines: list[list[float | str | None]] = []
    for row in rows:
        took = row.took_ms.get(CELL)
        cells = [median(took), percentile(took, 95)] if took else [None, None]
        lines.append([row.label, *cells, row.start_ms])
        _figures(report, row, CELL)
    title = f"A cell `{CELL}`: ms to the answer and the idle kernel; start: ms from nothing to the end of a first cell"
    report.tables.append(Table(title, ["way", CELL, f"{CELL} p95", "start"], lines))
    _ratios(report, KERNEL_RATIOS)


def _medians(row: Row) -> list[float | None]:
    cells: list[float | None] = []
    for command in COMMANDS:
        took = row.took_ms.get(command)
        cells += [median(took), percentile(took, 95)] if took else [None, None]
    return cells


def _moved(row: Row) -> float | str | None:
    """Bytes read and copied; of what is not known to be copied, only that it is no less than what is read."""
    if row.output is None:
        return None
    if row.output.copied_bytes is None:
        return f">={row.output.read_bytes / MB:.1f}"
    return (row.output.read_bytes + row.output.copied_bytes) / MB


def _output(row: Row) -> list[float | None]:
    if row.output is None:
        return [None] * 4
    copied = row.output.copied_bytes
    return [
        row.output.seconds,
        row.output.read_bytes / MB,
        None if copied is None else copied / MB,
        row.output.grown_bytes / MB,
    ]


def _figures(report: Report, row: Row, command: str) -> None:
    took = row.took_ms.get(command)
    if row.lacks is not None or not took:
        report.lack([f"{row.key}_ms_median"], row.lacks or "not taken")
        return
    report.figures[f"{row.key}_ms_median"] = median(took)
    report.figures[f"{row.key}_ms_p95"] = percentile(took, 95)


def _ratios(report: Report, ratios: Mapping[str, tuple[str, str]]) -> None:
    for name, (upper, lower) in ratios.items():
        figures = [f"{upper}_ms_median", f"{lower}_ms_median"]
        missing = [figure for figure in figures if figure not in report.figures]
        if missing:
            report.lack([name], f"{missing[0]}: {report.absent.get(missing[0], 'not taken')}")
        else:
            report.figures[name] = report.figures[figures[0]] / report.figures[figures[1]]
