# SPDX-License-Identifier: Apache-2.0
"""Continues a text with a model that `millrace ckpt export` wrote, by transformers alone: no line of Millrace.

millrace ckpt export run model --like model-files
python examples/generate.py model 'It is a truth'
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of config.json, tokenizer and weights")
    parser.add_argument("text", help="what is continued")
    parser.add_argument("--tokens", type=int, default=24, help="how many are added")
    parser.add_argument("--seed", type=int, default=1, help="of the choice among likely tokens")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model)
    ids = tokenizer(args.text, return_tensors="pt").input_ids
    with torch.no_grad():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.tokens, do_sample=True,
                              pad_token_id=0)  # fmt: skip
    print(tokenizer.decode(made[0], skip_special_tokens=True))


if __name__ == "__main__":
    main()
