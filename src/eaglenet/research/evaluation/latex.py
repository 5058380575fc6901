"""LaTeX tables of reports, for the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from eaglenet.core.text import escape_line

PREAMBLE = "% Needs \\usepackage{booktabs}. table* spans both columns of a two-column page.\n"
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}


def escape_latex(text: str) -> str:
    """Escape text for LaTeX; several hyphens stay hyphens.

    >>> escape_latex("head_dim=4 & --x {50%}")
    'head\\\\_dim=4 \\\\& -{}-x \\\\{50\\\\%\\\\}'
    """
    escaped = "".join(SPECIAL.get(char, char) for char in escape_line(text))
    return re.sub("-(?=-)", "-{}", escaped)


def escape_number(text: str) -> str:
    r"""Typeset the signs of a number.

    >>> escape_number("-1.5 [-2.0, +0.5] *")
    '$-$1.5 [$-$2.0, $+$0.5] *'
    """
    return re.sub(r"([+-])(?=\d)", r"$\1$", escape_latex(text))


def format_cell(mean: float, deviation: float, count: int, mark: str = "") -> str:
    r"""Typeset a mean, with the deviation below its line; ``mark`` is a command such as textbf.

    >>> format_cell(12.34, 0.56, 3, "textbf"), format_cell(12.34, 0.0, 1)
    ('\\textbf{12.3}$_{\\pm 0.6}$', '12.3')
    """
    value = f"\\{mark}{{{mean:.1f}}}" if mark else f"{mean:.1f}"
    return f"{value}$_{{\\pm {deviation:.1f}}}$" if count > 1 else value


def find_marks(values: Sequence[float], *, is_lower_better: bool) -> list[str]:
    """Return the commands of a column: bold for the best, a line under the second best.

    Values are compared as they are printed. Columns of equal values and of one value have no marks;
    columns of two values, or of two best, have no second best.

    >>> find_marks([1.0, 3.0, 2.0, 2.0], is_lower_better=False)
    ['', 'textbf', 'underline', 'underline']
    >>> find_marks([1.0, 3.0, 2.0, 3.0], is_lower_better=False)
    ['', 'textbf', '', 'textbf']
    """
    rounded = [float(f"{value:.1f}") for value in values]
    order = sorted(set(rounded), reverse=not is_lower_better)
    if len(order) < 2:
        return [""] * len(rounded)
    commands = {order[0]: "textbf"}
    if len(rounded) > 2 and rounded.count(order[0]) == 1:
        commands[order[1]] = "underline"
    return [commands.get(value, "") for value in rounded]


@dataclass(frozen=True)
class LatexTable:
    """A table; header and cells are LaTeX, the caption and the comments are plain text.

    groups: titles above the columns, each with its number of columns.
    num_names: columns at the left that hold names.
    comments: lines for the author, which are not printed.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    groups: Sequence[tuple[str, int]] = ()
    num_names: int = 1
    comments: Sequence[str] = ()

    def format(self, label: str) -> str:
        """Return the environment ``table*``."""
        columns = "l" * self.num_names + "r" * (len(self.header) - self.num_names)
        lines = [f"% {escape_line(comment)}" for comment in self.comments]
        lines += [
            "\\begin{table*}[t]",
            "\\centering",
            "\\footnotesize",
            "\\setlength{\\tabcolsep}{3pt}",
        ]
        lines += [f"\\caption{{{escape_latex(self.caption)}}}", f"\\label{{tab:{label}}}"]
        lines += [f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}", "\\toprule"]
        if self.groups:
            titles, rules, column = [], [], 1
            for title, width in self.groups:
                titles.append(f"\\multicolumn{{{width}}}{{c}}{{{title}}}" if title else "")
                if title:
                    rules.append(f"\\cmidrule(lr){{{column}-{column + width - 1}}}")
                elif width > 1:
                    titles += [""] * (width - 1)
                column += width
            lines += [_row(titles), "".join(rules)]
        lines += [_row(self.header), "\\midrule", *map(_row, self.rows)]
        lines += ["\\bottomrule", "\\end{tabular}", "\\end{table*}"]
        return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    # A row that begins with [ or * would be read as an option of the line break before it.
    return " & ".join(f"{{}}{cell}" if cell[:1] in ("[", "*") else cell for cell in cells) + r" \\"


def format_tables(tables: Sequence[LatexTable]) -> str:
    """Return a file of tables, with the labels ``tab:eaglenet-1``, ``tab:eaglenet-2`` ..."""
    texts = [table.format(f"eaglenet-{number}") for number, table in enumerate(tables, start=1)]
    return "\n\n".join([PREAMBLE.rstrip(), *texts]) + "\n"
