"""transformers' Trainer on a tiny Llama of random weights, which learns to count.

Arguments: the rows of a batch on each GPU, and which floating-point type the model has. With a
third one, peft's LoRA is trained: of the model as it is (64), or of one that bitsandbytes quantized
to that many bits and `device_map="auto"` spread over all GPUs.
"""

import json
import sys

import torch
from transformers import (
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=20,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=16,
)
model = LlamaForCausalLM(config).to(getattr(torch, sys.argv[2]))
bits = sys.argv[3:]
if bits:
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if bits != ["64"]:
        how = {"quantization_config": BitsAndBytesConfig(**{f"load_in_{bits[0]}bit": True})}
        model.save_pretrained("saved")
        model = LlamaForCausalLM.from_pretrained("saved", device_map="auto", **how)
        model = prepare_model_for_kbit_training(model)
    model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
starts = torch.randint(20, (32, 1))
counting = (starts + torch.arange(8)) % 20
examples = [{"input_ids": row, "labels": row} for row in counting]

rows_on: dict[str, int] = {}


def count_rows(module, inputs):
    device = str(inputs[0].device)
    rows_on[device] = rows_on.get(device, 0) + len(inputs[0])


model.lm_head.register_forward_pre_hook(count_rows)
arguments = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=int(sys.argv[1]),
    per_device_eval_batch_size=int(sys.argv[1]),
    num_train_epochs=3,
    learning_rate=0.02,
    optim="adamw_torch" if bits in ([], ["64"]) else "paged_adamw_8bit",
    lr_scheduler_type="constant",
    logging_steps=1,
    save_strategy="epoch",
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=examples, eval_dataset=examples)
trainer.train()
rows = dict(rows_on)
measured = trainer.evaluate()
predicted = trainer.predict(examples)
weights = [p.detach().cpu() for p in model.parameters() if p.is_floating_point()]
saved = () if bits else LlamaForCausalLM.from_pretrained("trained/checkpoint-12", dtype=model.dtype)
report = {
    "gpus": arguments.n_gpu,
    "wrapper": type(trainer.model_wrapped).__module__,
    "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
    "rows": rows,
    "eval_loss": measured["eval_loss"],
    "predictions": list(predicted.predictions.shape),
    "saved_the_weights": bool(saved) and all(map(torch.equal, saved.cpu().parameters(), weights)),
    "weights": torch.cat([weight.flatten() for weight in weights]).tolist(),
}
print(json.dumps(report))
