"""sentence-transformers: a tiny BERT of random weights with its tokenizer, encoding and trained.

The tokenizer's words and the model are made here, so nothing is downloaded.
Argument: the rows of a batch on each GPU.
"""

import copy
import json
import sys

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)
from transformers import BertConfig, BertModel, BertTokenizer

torch.manual_seed(0)
words = [f"w{i}" for i in range(20)]
tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
config = BertConfig(
    vocab_size=len(tokens),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
with open("vocab.txt", "w") as file:
    file.write("\n".join(tokens))
BertModel(config).save_pretrained("saved")
BertTokenizer("vocab.txt").save_pretrained("saved")
body = models.Transformer("saved", max_seq_length=12)
model = SentenceTransformer(modules=[body, models.Pooling(16)]).double()
sentences = [f"{words[i]} {words[(i + 1) % 20]} {words[(i + 2) % 20]}" for i in range(20)]
on_gpu = model.encode(sentences, convert_to_tensor=True, show_progress_bar=False)
on_cpu = (
    copy.deepcopy(model).cpu().encode(sentences, convert_to_tensor=True, show_progress_bar=False)
)
nearest = model.similarity(on_gpu, on_gpu).argmax(1).tolist()

pairs = Dataset.from_dict(
    {
        "sentence1": sentences * 2,
        "sentence2": sentences + sentences[10:] + sentences[:10],
        "score": [1.0] * 20 + [0.0] * 20,
    }
)
arguments = SentenceTransformerTrainingArguments(
    output_dir="trained",
    num_train_epochs=4,
    per_device_train_batch_size=int(sys.argv[1]),
    learning_rate=0.005,
    lr_scheduler_type="constant",
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
rows_on: dict[str, int] = {}


def count_rows(module, inputs, output):
    sentence = output["sentence_embedding"]
    rows_on[str(sentence.device)] = rows_on.get(str(sentence.device), 0) + len(sentence)


model[1].register_forward_hook(count_rows)
trainer = SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=pairs, loss=losses.CosineSimilarityLoss(model)
)
trainer.train()
logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
report = {
    "encoded_on": str(on_gpu.device),
    "close": torch.allclose(on_gpu.cpu(), on_cpu.cpu(), atol=1e-5),
    "nearest": nearest == list(range(20)),
    "gpus": arguments.n_gpu,
    "losses": logged,
    "rows": rows_on,
}
print(json.dumps(report))
