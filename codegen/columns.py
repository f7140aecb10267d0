"""columns.py -- what a template says of its kernels, beside granule, threads and shared: columns of the table.  Host
code asks them, where it would have to guess from a tile or an architecture.

A template sets  columns = {"reads": "checkpoint", "early": 0, ...}  with each column that its op has: one that is left
out is an error, not a 0.  The order of the lists is the ABI: append."""

GEMMS = "up down layer up_down"
READS = {                                              # how weights may lie
    "checkpoint": "as checkpoints have them (MOEK_WEIGHTS_CHECKPOINT)",
    "lines": "tiled, in lines of 128 bytes (MOEK_WEIGHTS_TILED)",
    "fragments": "tiled, as operands of wgmma and mma.sync (MOEK_WEIGHTS_TILED)",
    "panels": "16 rows side by side, on CPUs (MOEK_WEIGHTS_PANELS)",
    "blocks": "in blocks of GGUF files (MOEK_WEIGHTS_BLOCKS)",
}
TRAITS = {                                             # name: ops that have it, and what it means
    "early": ("route sort quant up down up_down combine", "args.early is heeded, on a device that has such launches"),
    "row_blocks": ("up down", "takes the list of row blocks that sort makes; others find them in the counts"),
    "sorts_ids": ("up down", "with args.ids, sorts up to MOEK_SELF_SORT slots itself"),
    "counts_ids": ("up up_down", "with args.ids, counts the ids itself"),
    "quantizes_out": ("up", "with args.q, writes what quant makes of out, in place of out"),
    "sorted_x": ("up", "reads rows of a faster where they lie in sorted order (rules.toml: sorted_x)"),
    "gathers": ("up up_down", "finds rows of a by 32 bits: a has fewer than MOEK_GATHERED bytes"),
    "w_maps": ("up", "reads w by TMA maps: w_gate and w less than 2^MOEK_SM90_APART bytes apart"),
    "fp16": ("layer", "T may be fp16"),
    "as_plain": ("up down", "of a CPU's set: plain C compiled for AVX-512 is as fast, and is taken there unasked"),
    "blocks_in_t": ("up down", "makes T of weights in blocks of GGUF files, rounded once; others scale sums of codes"),
}
OF_HOSTS = ("as_plain",)                               # templates of CPUs say these, no others do
NUMBERS = {
    "scratch": ("up down layer", "bytes of args.split that a block takes, where it may split tiles along k"),
    "flags": ("up down up_down", "int32 flags, zeros before a launch (up_down: besides, one a row block)"),
    "max_tokens": ("layer", "the most tokens of a launch; 0: any number, and m is a tile of rows"),
    "ring": ("layer", "of max_tokens: bytes of shared memory for weights on their way; else 0"),
    "pages": ("layer", "of max_tokens: pages of sums that a warp has; 0: one for each unit, and each warp"),
}


class Bad(Exception):
    """A sentence for the user."""


def has(name, op, host=False):
    """Has a kernel of this op the column?  host: a kernel of a CPU."""
    ops = GEMMS if name == "reads" else {**TRAITS, **NUMBERS}[name][0]
    return op in ops.split() and (host or name not in OF_HOSTS)


def known():
    return ["reads", *TRAITS, *NUMBERS]


def checked(op, said, tiled, host):
    """The columns of a row, by what its template said; tiled: how weights of its format lie that are tiled; host: the
    row is of a CPU."""
    if said is None:
        said = {}
    for name in said:
        if name not in known():
            raise Bad(f"columns has {name}, which is no column; there are {' '.join(known())}")
    for name in known():
        if has(name, op, host) and name not in said:
            raise Bad(f"columns lacks {name}, which each kernel of op {op} says (codegen/columns.py: "
                      f"{'how weights may lie' if name == 'reads' else {**TRAITS, **NUMBERS}[name][1]})")
    reads = said["reads"].split() if has("reads", op) else []
    for word in reads:
        if word not in READS:
            raise Bad(f"columns says that weights are read as {word}; there are {' '.join(READS)}")
        if word in ("lines", "fragments") and word != tiled:
            raise Bad(f"columns says that weights are read as {word}, and tiled ones of this format are {tiled} "
                      "(tiled in kernels.toml: formats)")
    for name in NUMBERS:
        if has(name, op) and (not isinstance(said[name], int) or said[name] < 0):
            raise Bad(f"columns says {name} {said[name]!r}; it is a whole number from 0 on")
    return {"reads": reads, "traits": [t for t in TRAITS if has(t, op, host) and said[t]],
            **{name: int(said[name]) if has(name, op) else 0 for name in NUMBERS}}


def bits(prefix, words):
    """As C: MOEK_READS_CHECKPOINT | MOEK_READS_LINES; 0."""
    return " | ".join(prefix + word.upper() for word in words) or "0"
