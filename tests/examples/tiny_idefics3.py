"""A tiny Idefics3, SmolVLM's architecture, with random weights, saved as transformers saves the published ones."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    PreTrainedTokenizerFast,
)

from agents.common.answers.names import NAMES

SPECIAL = ("<pad>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>")
CHAT = (
    "{% for message in messages %}{{ message['role'] }}:{% for each in message['content'] %}"
    "{% if each['type'] == 'image' %}<image>{% else %}{{ each['text'] }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_tiny(folder: Path, seed: int = 0, *, tied: bool = False) -> Path:
    """Write config, weights and processor; every action is one token. tied: the head is the embeddings."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    words.add_tokens([AddedToken(name, normalized=False) for name in NAMES])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end_of_utterance>")
    images = Idefics3ImageProcessorPil(size={"longest_edge": 32}, max_image_size={"longest_edge": 32})
    Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=CHAT).save_pretrained(folder)
    config = Idefics3Config(
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
        },
        text_config={
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=2,
        tie_word_embeddings=tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    return folder
