"""Writes docs/coverage.md and hf_ess/data/coverage.json from a run over every causal model type of transformers.

Half a minute, no download.

python docs/make_coverage.py            # write the page
python docs/make_coverage.py --check    # say whether the page is what a run gives; exit status 1 if not
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("coverage.md")
STATE = PAGE.parents[1] / "hf_ess" / "data" / "coverage.json"
sys.path.insert(0, str(PAGE.parents[1]))

INTRODUCTION = """# Which models are covered

**{covered} of the {total} model types** that `AutoModelForCausalLM` of transformers {transformers} knows are covered
(torch {torch}, {date}). This page is written by

```
python docs/make_coverage.py
```

and `pytest -m slow tests/adapters/test_coverage.py` fails where it is not what a run gives.

## What covered means
A type is built with a tiny configuration (`tests/data/tiny_configs.json`) and random weights, and run once on
{length} tokens in float32. It is covered when

1. **every** sequence mixer that ran gave operators T with ||T u - y|| / ||y|| within its bound, where y is what the
   model's own function returned; one mixer refused or one operator that fails, and the type is not covered;
2. no operator is empty: each kind of layer carries something from token to token in this model;
3. no token's logits depend on later tokens;
4. nothing else mixes: where one token is exchanged and what the measured mixers give to the other tokens is held
   fixed, nothing changes at the other tokens, neither at the next mixers' inputs nor in the logits.

The tests in `tests/adapters` add bfloat16 and float16, the model's own attention weights as a second opinion, and for
every part of an operator (window, sink, bias, decay, lambda ...) that verification fails when it is left out.

## What is in T
T is the mixing alone. Convolutions on the way to queries, keys, values or a scan (Mamba, DeltaNet, zaya, inkling) and
gates after it are not in T; a convolution that is a layer of its own (lfm2, inkling, the token shift in the
feed-forward network of rwkv) is measured as one. Of diffllama, there is one operator per pair of heads.

## What the configurations say
A decoder is meant where a type can be both: the BERT and BART families and roformer with `is_decoder=True`, xlm with
`causal=True`, xlnet with `attn_type="uni"`, big_bird and bigbird_pegasus with `attention_type="original_full"`. An
xlnet with `attn_type="bi"`, as published, is refused: its operators are not causal. Falcon with `alibi=True` is another
model in eager attention than with SDPA: there transformers adds the bias twice. T is what was computed in either case.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    import torch
    from transformers.utils import logging

    from tests.coverage import model_types, survey

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    rows = [survey(name) for name in model_types()]
    if check:
        same = table(PAGE.read_text(encoding="utf-8")) == table(page(rows))
        sys.stdout.write(f"{PAGE.name} is {'' if same else 'not '}what a run gives\n")
        return 0 if same else 1
    PAGE.write_text(page(rows), encoding="utf-8")
    STATE.write_text(json.dumps(state(rows), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{sum(row.covered for row in rows)} of {len(rows)} types are covered: {PAGE}\n")
    return 0


def state(rows: list) -> dict:
    """What `hf-ess ls` says of the families: the model types whose every mixer was verified, by kind."""
    import transformers

    kinds: dict[str, list[str]] = {}
    for row in rows:
        if row.covered:
            for kind in sorted({kind for _, kind in row.measured}):
                kinds.setdefault(kind, []).append(row.model_type)
    return {
        "transformers": transformers.__version__,
        "date": datetime.date.today().isoformat(),
        "types": len(rows),
        "covered": sum(row.covered for row in rows),
        "kinds": kinds,
    }


def page(rows: list) -> str:
    """The page as text, from a list of tests.coverage.Coverage."""
    import torch
    import transformers

    from tests.coverage import LENGTH

    covered = [row for row in rows if row.covered]
    lines = [
        INTRODUCTION.format(
            covered=len(covered),
            total=len(rows),
            transformers=transformers.__version__,
            torch=torch.__version__.split("+")[0],
            date=datetime.date.today().isoformat(),
            length=LENGTH,
        ),
        f"## Not covered: {len(rows) - len(covered)}",
        "",
        "| model type | why | verified all the same |",
        "|---|---|---|",
        *(f"| {r.model_type} | {'; '.join(r.reasons)} | {_measured(r)} |" for r in rows if not r.covered),
        "",
        f"## Covered: {len(covered)}",
        "",
        "Calls of each class in the tiny model, the kind of its operators, and the largest relative error of all.",
        "",
        "| model type | mixers | error | did not run on a text alone |",
        "|---|---|---|---|",
        *(f"| {r.model_type} | {_measured(r)} | {r.error:.0e} | {', '.join(r.idle)} |" for r in covered),
    ]
    return "\n".join(lines) + "\n"


def _measured(row) -> str:
    return ", ".join(f"{n} {name} ({kind})" for (name, kind), n in sorted(row.measured.items()))


def table(text: str) -> dict[str, tuple[str, ...]]:
    """Model type -> the other cells of its line, errors left out: they depend on the processor."""
    cells = [[x.strip() for x in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    number = re.compile(r"\d(\.\d)?e[+-]\d+$")
    return {first: tuple(x for x in rest if not number.match(x)) for first, *rest in cells if first != "model type"}


if __name__ == "__main__":
    sys.exit(main())
