"""bench.py -- models of real width and random weights on a GPU: transformers' experts implementations and moek's.

   python clients/transformers/bench.py [-o FILE] [--layers 8] [MODEL ...]
                                                   MODEL: qwen3-30b-a3b, gpt-oss-20b, gpt-oss-20b-mxfp4

Columns of FILE (TSV), for a batch of one token each (decode without a context), and for one sequence of 2048 (prefill):
  block_us      a MoE block, router and experts: all blocks of the model, one after the other, in a CUDA graph.  eager
                asks the GPU which experts have tokens, so there is no graph of it
  forward_ms    the model's forward function, as a program calls it
  graph_ms      the same in a CUDA graph
  generate      tokens a second of model.generate, 32 tokens behind a prompt of 16; transformers itself changes
                grouped_mm to batched_mm for the steps behind the prompt
  off           logits against those of eager, relative L2, the median over tokens
-: it does not fit, or cannot be captured.  moek-1 is moek with register(one_launch=True).  Weights of a layer are far
larger than L2, and each run goes through all layers.  Times are medians of 9 runs of enough repetitions for 50 ms.
gpt-oss-20b-mxfp4: moek reads MXFP4, the others bf16 that was made of it.

--dry runs tiny models on the CPU, to see that the program works."""
import argparse
import statistics
import sys
import time

import torch
import transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import moek_packed
import moek_torch
import moek_transformers

MODELS = {
    "qwen3-30b-a3b": ("Qwen3Moe", dict(
        hidden_size=2048, moe_intermediate_size=768, intermediate_size=6144, num_experts=128, num_experts_per_tok=8,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, norm_topk_prob=True)),
    "gpt-oss-20b": ("GptOss", dict(
        hidden_size=2880, intermediate_size=2880, num_local_experts=32, num_experts_per_tok=4, num_attention_heads=64,
        num_key_value_heads=8, head_dim=64)),
}
MODELS["gpt-oss-20b-mxfp4"] = MODELS["gpt-oss-20b"]
TINY = dict(hidden_size=64, intermediate_size=32, moe_intermediate_size=32, num_experts=8, num_local_experts=8,
            num_experts_per_tok=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
IMPLEMENTATIONS = "eager", "batched_mm", "grouped_mm", "moek", "moek-1"
SHAPES = (1, 1), (8, 1), (64, 1), (1, 2048)            # sequences, tokens of each
COLUMNS = "model sequences tokens implementation block_us forward_ms graph_ms generate off".split()


def build(name, layers, device, dry):
    kind, sizes = MODELS[name]
    config = getattr(transformers, kind + "Config")(**{
        **sizes, **(TINY if dry else {}), "num_hidden_layers": layers, "vocab_size": 4096, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": None, "max_position_embeddings": 4096})
    torch.manual_seed(1)
    with torch.device(device):
        model = getattr(transformers, kind + "ForCausalLM")._from_config(config, dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def blocks_and_scales(model):
    """Random MXFP4 for all experts, {module: {name: tensor}}; the model's bf16 becomes what it means."""
    of = {}
    for experts in (layer.mlp.experts for layer in model.model.layers):
        of[experts] = {}
        for name, rows, columns, _ in moek_packed.matrices(experts):
            weight = getattr(experts, name)
            sizes = dict(size=(len(weight), rows, columns // 32), dtype=torch.uint8, device=weight.device)
            scales = torch.randint(118, 122, **sizes)
            blocks = torch.randint(256, **{**sizes, "size": (*sizes["size"], 16)})
            weight.data = convert_moe_packed_tensors(blocks, scales)
            of[experts].update({name + "_blocks": blocks, name + "_scales": scales})
    return of


def pack(experts, tensors):
    moek_packed.pack(experts, moek_packed.Mxfp4.suffixes, moek_packed.mxfp4_shapes)
    for name, tensor in tensors.items():
        getattr(experts, name).data = tensor


def choose(model, implementation):
    moek_torch.settings["one_launch"] = implementation == "moek-1"
    model.set_experts_implementation(implementation.partition("-")[0])


def milliseconds(work, device):
    """A median."""
    def once(repeat):
        if device.type != "cuda":
            start = time.perf_counter()
            for _ in range(repeat):
                work()
            return 1e3 * (time.perf_counter() - start) / repeat
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeat):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeat
    for _ in range(3):
        first = once(1)
    repeat = max(1, min(200, int(50 / first)))
    return statistics.median(once(repeat) for _ in range(9))


def tried(what, work):
    """What work returns, or None and a line on stderr."""
    try:
        return work()
    except (RuntimeError, torch.OutOfMemoryError) as error:
        print(f"{what}: {str(error).splitlines()[0][:150]}", file=sys.stderr)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None


def captured(work):
    """A function that replays `work`."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def blocks(model, tokens, device):
    """All MoE blocks, each with its own input."""
    of = [layer.mlp for layer in model.model.layers]
    x = torch.randn(len(of), 1, tokens, model.config.hidden_size, device=device).bfloat16()
    return lambda: [block(x[i]) for i, block in enumerate(of)]


def measure(model, name, implementation, sequences, length, want, device):
    what = f"{name} {sequences} x {length} {implementation}"
    ids = torch.randint(2, 4096, (sequences, length), generator=torch.Generator().manual_seed(1)).to(device)
    forward = lambda: model(ids, use_cache=False).logits
    logits = tried(what, forward)
    row = dict.fromkeys(COLUMNS, "-")
    row.update(model=name, sequences=sequences, tokens=length, implementation=implementation)
    if logits is None:
        return row, want
    want = logits.float() if want is None else want
    row["off"] = f"{((logits.float() - want).norm(dim=-1) / want.norm(dim=-1)).median().item():.1e}"
    layers = model.config.num_hidden_layers
    work = blocks(model, sequences * length, device)
    timed = lambda work: tried(what, lambda: milliseconds(work, device))
    row["forward_ms"] = timed(forward)
    if device.type == "cuda" and implementation != "eager":
        replay = tried(what + ", blocks in a graph", lambda: captured(work))
        row["block_us"] = timed(replay) if replay else None
        replay = tried(what + " in a graph", lambda: captured(forward))
        row["graph_ms"] = timed(replay) if replay else None
    else:
        row["block_us"] = timed(work)
    if length == 1:
        row["generate"] = tried(what + ", generate", lambda: generate(model, sequences, device))
    if row["block_us"]:
        row["block_us"] = 1e3 * row["block_us"] / layers
    return {key: "-" if v is None else f"{v:.4g}" if isinstance(v, float) else v for key, v in row.items()}, want


def generate(model, sequences, device):
    ids = torch.randint(2, 4096, (sequences, 16), generator=torch.Generator().manual_seed(2)).to(device)
    run = lambda: model.generate(ids, max_new_tokens=32, do_sample=False, pad_token_id=0)
    run()
    return 32e3 * sequences / min(milliseconds_once(run, device) for _ in range(3))


def milliseconds_once(work, device):
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("-o", help="by default: standard output")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    device = torch.device("cpu" if options.dry else "cuda:0")
    moek_transformers.register()
    with open(options.o, "w") if options.o else sys.stdout as out, torch.inference_mode():
        card = "a CPU, tiny models" if options.dry else torch.cuda.get_device_name()
        print(f"# {card}, torch {torch.__version__}, transformers {transformers.__version__}, {options.layers} layers, "
              f"bf16: python clients/transformers/bench.py {' '.join(sys.argv[1:])}", *["\t".join(COLUMNS)],
              sep="\n", file=out)
        for name in options.models:
            model, wanted = build(name, options.layers, device, options.dry), {}
            packed = blocks_and_scales(model) if name.endswith("mxfp4") else {}
            for implementation in IMPLEMENTATIONS:     # moek's last: gpt-oss' weights are then rearranged
                choose(model, implementation)
                if implementation == "moek":
                    for experts, tensors in packed.items():
                        pack(experts, tensors)
                    served = moek_transformers.use(model)
                    assert served and not any(served.values()), served
                for shape in SHAPES:
                    row, wanted[shape] = measure(model, name, implementation, *shape, wanted.get(shape), device)
                    print(*(row[c] for c in COLUMNS), sep="\t", file=out, flush=True)
            del model, packed


if __name__ == "__main__":
    main()
