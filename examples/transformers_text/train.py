"""The next token of a text, with a tiny GPT-2 that begins at random."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from detcloud import core
from detcloud.transformers import DetCallback

BLOCK = 32
VOCABULARY = 256


def main() -> None:
    with core.init() as context:
        hparams = {"learning_rate": 0.003, "width": 32, "max_steps": 120, **context.info.hparams}
        set_seed(context.info.trial_seed)
        blocks = load_blocks()
        args = TrainingArguments(
            output_dir="checkpoints",
            max_steps=hparams["max_steps"],
            learning_rate=hparams["learning_rate"],
            per_device_train_batch_size=16 // context.distributed.size,
            eval_strategy="steps",
            eval_steps=40,
            save_strategy="steps",
            save_steps=40,
            save_total_limit=2,
            logging_steps=20,
            seed=context.info.trial_seed % 2**31,
            use_cpu=not torch.cuda.is_available(),
            disable_tqdm=True,
            report_to="none",
        )
        callback = DetCallback(context, args)
        width = hparams["width"]
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=BLOCK,
                n_embd=width,
                n_layer=2,
                n_head=2,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
        trainer = Trainer(
            model,
            args,
            data_collator=collate,
            train_dataset=TensorDataset(blocks[BLOCK:]),
            eval_dataset=TensorDataset(blocks[:BLOCK]),
            callbacks=[callback],
        )
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


def load_blocks() -> torch.Tensor:
    """The descriptions of data sets that ship with scikit-learn, as blocks of BLOCK tokens."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the texts ship with scikit-learn: pip install scikit-learn")
    folder = Path(package.origin).parent / "datasets" / "descr"
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.rst"))]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        BpeTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=["<end>"]),
    )
    tokens = torch.tensor([token for text in texts for token in tokenizer.encode(text).ids])
    return tokens[: len(tokens) // BLOCK * BLOCK].reshape(-1, BLOCK)


def collate(records: list[tuple[torch.Tensor]]) -> dict[str, Any]:
    tokens = torch.stack([record[0] for record in records])
    return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    main()
