"""Recipes: experiments composed of a method, data, a tower, a protocol and variants.

>>> recipe = Recipe("xpool", data="msrvtt", tower="clip-b32")
>>> recipe.command
'eaglenet train xpool --data msrvtt --tower clip-b32 --protocol paper'
>>> recipe.build().training.epochs
5
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from eaglenet.core.errors import ConfigError, UnknownNameError, shell_quote
from eaglenet.core.registry import Registry
from eaglenet.core.settings import split_assignment
from eaglenet.methods import METHODS
from eaglenet.research.data import SOURCES
from eaglenet.research.evaluation.paper import paper_tables
from eaglenet.research.experiments.experiment import Experiment, Settings, Setup
from eaglenet.research.names import OTHER_TOWERS, PROTOCOLS, unknown_choice, unknown_data
from eaglenet.research.recipes import setups
from eaglenet.research.recipes.authors import EXPERT_ROWS, ORIGINALS
from eaglenet.research.recipes.setups import TOWERS


def _components() -> dict[str, Settings]:
    rows: dict[str, Settings] = {}
    for loss in ("softmax", "sigmoid"):
        for with_energy in (False, True):
            for with_relations in (False, True):
                names = ("frl" * with_relations, "eam" * with_energy, loss * (loss == "sigmoid"))
                label = "+".join(name for name in names if name) or "none"
                energy = {} if with_energy else {"energy": None}
                rows[label] = {"relation_learning": with_relations, "loss": loss, **energy}
    return rows


TABLES: Mapping[str, Mapping[str, Settings]] = {
    "components": _components(),
    "energy": {name: {"energy": name} for name in ("cosine", "bilinear", "mlp")},
    "pooling": {
        "none": {"energy": None},
        "video": {"energy_pooling": "global"},
        "max": {"energy_pooling": "max"},
        "min": {"energy_pooling": "min"},
        "mean": {"energy_pooling": "mean"},
    },
    "graph": {
        "gat": {"graph": "gat", "energy": None},
        "rgat": {"graph": "rgat", "energy": None},
        "gat+eam": {"graph": "gat"},
        "rgat+eam": {"graph": "rgat"},
    },
    "coefficient": {value: {"energy_weight": float(value)} for value in ("0.1", "0.5", "1.0")},
    "edges": {
        "no-frl": {"relation_learning": False},
        "no-f2f": {"frame_edges": False},
        "full": {},
    },
}
"""Changes to EagleNet by ablation table and row; names are those of ``evaluation.paper``."""

VARIANTS: Mapping[str, Mapping[str, Mapping[str, Settings]]] = {
    "eaglenet": {
        **TABLES,
        # As printed, edge weights are read before the LeakyReLU: the frame part cancels, and
        # frame-to-frame edges have no effect. R@1 of literal and activated, three seeds: demo world
        # 33.0 and 29.8, real frames 27.0 and 26.8, within the spread (docs/reference/paper_map.md).
        "reading": {
            "literal": {"edge_weights": "raw"},
            "activated": {"edge_weights": "activated"},
        },
    },
    "clip4clip": {
        "head": {name: {"head": name} for name in ("mean", "lstm", "transformer", "tight")}
    },
    "wordframe": {
        "ablation": {
            "interaction-only": {"coarse": False},
            "coarse-only": {"coarse": True, "interaction": False},
            "equal-weights": {"weighted": False},
            "no-layers": {"num_layers": 0},
            "no-changes": {"changes": False},
            "both-ways": {"both_ways": True},
            "no-bank": {"bank": 0},
        }
    },
}
"""Changes to the configuration of each method, by variant and value."""


def apply_variants(method: str, variants: Sequence[str]) -> tuple[str, dict[str, object]]:
    """Return the method that ``variants`` select, and their changes to its configuration.

    Raises:
        UnknownNameError: the method does not have a variant or value.
        ConfigError: a variant cannot be combined with others.
    """
    changes: dict[str, object] = {}
    available = VARIANTS.get(method, {})
    for variant in variants:
        name, value = split_assignment(variant, "edges=no-f2f")
        if name not in available:
            known_names = ", ".join(available) or "none"
            raise UnknownNameError(
                f"--variant {variant}: {method} has no variant {name!r} (known: {known_names}); "
                f"change any field with --set method_config.NAME=VALUE"
            )
        if value not in available[name]:
            raise UnknownNameError(
                f"--variant {variant}: choose one of {', '.join(available[name])}"
            )
        if (name, value) == ("components", "none"):
            if len(variants) > 1:
                raise ConfigError(f"--variant {variant} is T-MASS; leave out the other variants")
            return "tmass", {}  # The first row of the table has the numbers of T-MASS.
        changes |= available[name][value]
    return method, changes


MakeSetup = Callable[[str, str, str], Setup]
"""Makes the setup of a method, data and tower."""
PRETRAINED = tuple(TOWERS)
CLIP_TOWERS = tuple(name for name, tower in TOWERS.items() if tower.is_clip)


@dataclass(frozen=True)
class DataAxis:
    """A value of the data axis.

    towers: protocols by tower; the first tower and the first protocol are the defaults.
    is_default_named: whether experiments with the default tower have it in their names.
    """

    title: str
    towers: Mapping[str, Mapping[str, MakeSetup]]
    is_default_named: bool = True


VIDEO_PROTOCOLS: Mapping[str, MakeSetup] = {
    "paper": setups.paper_setup,
    "released": setups.released_setup,
    "original": setups.original_setup,
}


def _videos(dataset: str, *published: str) -> DataAxis:
    """Make the axis of a dataset: protocol ``paper`` on all towers, ``published`` on CLIP."""
    clip = {name: VIDEO_PROTOCOLS[name] for name in ("paper", *published)}
    towers = {"clip-b16": clip, **dict.fromkeys(CLIP_TOWERS, clip)}
    towers |= {name: {"paper": setups.paper_setup} for name in TOWERS if name not in towers}
    if "released" in published:
        towers["experts"] = {"original": setups.original_setup}
    return DataAxis(SOURCES[dataset].title, towers)


DATA: Mapping[str, DataAxis] = {
    "demo": DataAxis(
        "the demo world that the package renders", {"random": {"equal": setups.demo_setup}}
    ),
    "folder": DataAxis(
        "your own videos and captions",
        {
            **{name: {"paper": setups.paper_setup} for name in TOWERS},
            "small": {"equal": setups.small_folder_setup},
            "small-frozen": {"equal": setups.small_folder_setup},
        },
    ),
    "frames": DataAxis(
        "folders of frames with captions",
        {
            "small-frozen": {"equal": setups.frames_setup},
            "small": {"equal": setups.frames_setup},
        },
    ),
    "features": DataAxis(
        "stored features",
        {
            "adapters": {"equal": setups.feature_setup},
            "shared": {"equal": setups.shared_setup},
        },
        is_default_named=False,  # Runs made before there was a second tower keep their names.
    ),
    "experts": DataAxis(
        "stored features of several experts", {"experts": {"equal": setups.expert_setup}}
    ),
    **{
        name: _videos(name, "released", "original")
        for name in ("msrvtt", "didemo", "msvd", "vatex")
    },
    **{name: _videos(name, "original") for name in ("activitynet", "lsmdc")},
    **{name: _videos(name) for name in ("youcook2", "qvhighlights", "charades-sta", "tgif")},
}

INSIDE_CLIP = frozenset({"clipvip", "rap", "shenet", "tfvl", "tvproxynet"})
"""Methods that use more of CLIP's towers than features of frames and texts."""
INSIDE_PATCHES = frozenset({"prost", "tempme", "ts2net", "ucofia"})
"""Methods that work inside an image tower with patch features: CLIP's and that of `small`."""
INSIDE_TOWERS = frozenset({"bridgeformer", "frozen"})
"""Methods that work inside an image tower of any family."""


@dataclass(frozen=True)
class Recipe:
    """One value per axis; an empty value is the default of the data and the tower.

    variants: ``NAME=VALUE`` as in :data:`VARIANTS`.
    """

    method: str
    data: str = "demo"
    tower: str = ""
    protocol: str = ""
    variants: tuple[str, ...] = ()

    def resolve(self) -> Recipe:
        """Return the recipe with all defaults filled in.

        Raises:
            UnknownNameError: a name is on no axis.
            ConfigError: the values cannot be combined.
        """
        METHODS[self.method]
        axis = find_data(self.data)
        tower = self.tower or next(iter(axis.towers))
        # Some authors published settings only for experts.
        if not self.tower and (self.method, self.data) in EXPERT_ROWS:
            tower = "experts"
        if tower not in axis.towers:
            self._raise_for_name("tower", tower, (*TOWERS, *OTHER_TOWERS), tuple(axis.towers))
        protocols = axis.towers[tower]
        protocol = self.protocol or next(iter(protocols))
        if protocol not in protocols:
            self._raise_for_name("protocol", protocol, tuple(PROTOCOLS), tuple(protocols), tower)
        recipe = replace(self, tower=tower, protocol=protocol)
        method, _ = apply_variants(self.method, self.variants)
        problem = find_problem(replace(recipe, method=method))
        if problem:
            raise ConfigError(problem)
        return recipe

    def _raise_for_name(
        self,
        axis: str,
        value: str,
        names: tuple[str, ...],
        choices: tuple[str, ...],
        tower: str = "",
    ) -> None:
        if value not in names:
            raise unknown_choice(axis, value, choices)
        other_axes = f"--data {self.data}" + (f" --tower {tower}" if tower else "")
        raise ConfigError(
            f"--{axis} {value} cannot be combined with {other_axes}; choose one of "
            f"{', '.join(choices)}"
        )

    def build(self) -> Experiment:
        """Make the experiment; raises the errors of :meth:`resolve`."""
        recipe = self.resolve()
        method, changes = apply_variants(recipe.method, recipe.variants)
        protocols = find_data(recipe.data).towers[recipe.tower]
        setup = protocols[recipe.protocol](method, recipe.data, recipe.tower)
        return setup.experiment(recipe.name, method, changes)

    def _chosen_axes(self) -> list[tuple[str, str]]:
        """Return the names and values of tower and protocol, for those with a choice."""
        axis = find_data(self.data)
        towers = axis.towers
        is_default = self.tower == next(iter(towers))
        is_named = len(towers) > 1 and (axis.is_default_named or not is_default)
        axes = [("tower", self.tower)] if is_named else []
        return axes + ([("protocol", self.protocol)] if len(towers[self.tower]) > 1 else [])

    @property
    def name(self) -> str:
        """Name of the experiment: method, data, axes with a choice, and variants."""
        recipe = self.resolve()
        axes = [value for _, value in recipe._chosen_axes()]
        return "/".join([recipe.method, recipe.data, *axes, *recipe.variants])

    @property
    def command(self) -> str:
        recipe = self.resolve()
        arguments = ["eaglenet", "train", recipe.method, "--data", recipe.data]
        for axis, value in recipe._chosen_axes():
            arguments += [f"--{axis}", value]
        for variant in recipe.variants:
            arguments += ["--variant", variant]
        return " ".join(map(shell_quote, arguments))


def find_data(name: str) -> DataAxis:
    """Return the axis of a dataset; datasets of plug-ins have the towers of ``folder``."""
    if name in DATA:
        return DATA[name]
    if name not in SOURCES:
        raise unknown_data(name)
    return DataAxis(SOURCES[name].title, DATA["folder"].towers)


def find_problem(recipe: Recipe) -> str:
    """Return the reason why a resolved recipe cannot run; empty if it can."""
    method, data, tower = recipe.method, recipe.data, recipe.tower
    is_stored = tower in ("adapters", "shared", "experts", "small-frozen")
    if method in INSIDE_CLIP and tower not in (*CLIP_TOWERS, "random"):
        return (
            f"{method} works inside CLIP's towers and cannot run on data {data} with tower "
            f"{tower}; choose --data demo, or videos with --tower {' or '.join(CLIP_TOWERS)}"
        )
    if method in INSIDE_PATCHES and tower not in (*CLIP_TOWERS, "random", "small"):
        return (
            f"{method} works inside an image tower with patches and cannot run on data "
            f"{data} with tower {tower}; choose --data demo, folder or frames with --tower small, "
            f"or videos with --tower {' or '.join(CLIP_TOWERS)}"
        )
    if method in INSIDE_TOWERS and is_stored:
        return (
            f"{method} works inside an image tower, but data {data} with tower {tower} has only "
            "features; choose --data demo, or videos with a pretrained tower"
        )
    if method == "hgr" and tower not in ("experts", "small-frozen"):
        return (
            "hgr reads token features and graphs of texts, which only folders of experts and of "
            "frames have; choose --data experts or --data frames"
        )
    if METHODS[method].reads_experts and tower == "shared":
        return f"{method} reads several experts; choose --data experts, or --tower adapters"
    if method == "supportset" and tower == "adapters":
        return "supportset reads token ids, which plain features lack; choose --data experts"
    pairs = _published_pairs(method, tower)
    if recipe.protocol != "original" or (data, tower) in pairs:
        return ""
    listing = ", ".join(f"--data {name} --tower {size}" for name, size in pairs)
    return (
        f"the authors of {method} published no settings for --data {data} --tower {tower}; "
        f"published: {listing or 'no dataset'}"
    )


def _published_pairs(method: str, tower: str) -> list[tuple[str, str]]:
    """Return the pairs of data and tower for which the authors of a method published settings."""
    if tower == "experts":
        return [(data, tower) for name, data in EXPERT_ROWS if name == method]
    if method not in ORIGINALS:
        return []
    settings = ORIGINALS[method]
    return [(data, size) for data in settings.datasets for size in settings.towers]


TABLE_NUMBERS: Mapping[str, int] = {
    "msrvtt": 1, "others": 2, "components": 3, "energy": 4, "pooling": 5, "time": 6, "graph": 7,
    "coefficient": 8, "edges": 9,
}  # fmt: skip
"""Numbers of the tables of ``evaluation.paper`` in the paper."""
METHODS_OF_LABELS: Mapping[str, str] = {
    "CE": "ce", "MMT": "mmt", "T2vlad": "t2vlad", "HiT": "hit", "TeachText": "teachtext",
    "ClipBERT": "clipbert", "SupportSet": "supportset", "Frozen": "frozen",
    "BridgeFormer": "bridgeformer", "TVMM": "tvmm", "HGR": "hgr", "CLIP4Clip": "clip4clip",
    "XPool": "xpool", "TS2Net": "ts2net", "CLIP-VIP": "clipvip", "UCoFiA": "ucofia",
    "ProST": "prost", "TMASS": "tmass", "RAP": "rap", "TFVL": "tfvl", "SHE-Net": "shenet",
    "GLSCL": "glscl", "TempMe": "tempme", "TV-ProxyNet": "tvproxynet",
    "Video-ColBERT": "video_colbert", "EagleNet": "eaglenet",
}  # fmt: skip
"""Names of methods here, by their names in the paper."""
SIZES = {"ViT-B/32": "b32", "ViT-B/16": "b16"}
DATASETS = {"DiDeMo": "didemo", "MSVD": "msvd", "VATEX": "vatex"}
ROW_NAME = re.compile(r"table\d+/.+")


@cache
def paper_recipes() -> Registry[Recipe]:
    """Return the recipes of all rows of the paper's tables by short name (``table1/xpool-b16``).

    Tables 1 and 6 are on MSR-VTT; the names of other tables include the dataset.
    """
    rows: Registry[Recipe] = Registry("row of the paper", list_command="eaglenet recipes table1")
    tables = paper_tables()
    for row in tables["msrvtt"].rows:
        name, recipe = _main_row(row.label, row.group, "msrvtt")
        rows.add(f"table1/{name}", recipe)
    for row in tables["others"].rows:
        for index, (title, dataset) in enumerate(DATASETS.items()):
            assert tables["others"].columns[3 * index].startswith(title)
            if any(value is not None for value in row.values[3 * index : 3 * index + 3]):
                name, recipe = _main_row(row.label, row.group, dataset)
                rows.add(f"table2/{dataset}/{name}", recipe)
    for row in tables["time"].rows:
        label = row.label.removesuffix(" (t2v)").removesuffix(" (v2t)")
        name, recipe = _main_row(label, "ViT-B/16", "msrvtt")
        if f"table6/{name}" not in rows:  # UCoFiA has two rows, for two directions of one run.
            rows.add(f"table6/{name}", recipe)
    for table, values in TABLES.items():
        for dataset in ("msrvtt", "didemo"):
            for value in values:
                recipe = Recipe("eaglenet", dataset, "clip-b16", "paper", (f"{table}={value}",))
                rows.add(f"table{TABLE_NUMBERS[table]}/{dataset}/{value}", recipe)
    return rows


def _main_row(label: str, group: str, dataset: str) -> tuple[str, Recipe]:
    method = METHODS_OF_LABELS[label]
    if group in SIZES:
        size = SIZES[group]
        return f"{method}-{size}", Recipe(method, dataset, f"clip-{size}", "paper")
    tower = ORIGINALS[method].towers[0] if method in ORIGINALS else "experts"
    return method, Recipe(method, dataset, tower, "original")
