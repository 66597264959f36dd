"""The argument's library trains: deepspeed at each stage of ZeRO and ray's TorchTrainer on ranks,
keras and agents of stable-baselines3 on a GPU, ultralytics' YOLO on "0,1".
"""

import json
import os
import random
import sys
from pathlib import Path

os.environ |= {"KERAS_BACKEND": "torch", "RAY_AUTH_MODE": "disabled", "YOLO_OFFLINE": "true"}
import torch
import torch.distributed as dist
from torch import nn

points = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
labels = points[:, :2].argmax(1)
report = Path("report.json").absolute()


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def learn(model, step):
    """The losses on batches of which each rank has a share, and the devices of the ranks."""
    rank, devices, losses = dist.get_rank(), [None] * dist.get_world_size(), []
    for x, y in list(zip(points.split(16), labels.split(16), strict=True)) * 6:
        own = slice(rank, None, len(devices))
        loss = nn.functional.cross_entropy(model(x[own].cuda()), y[own].cuda())
        step(loss)
        dist.all_reduce(loss.data, dist.ReduceOp.AVG)
        losses.append(loss.item())
    dist.all_gather_object(devices, str(loss.device))
    return {"losses": losses, "devices": devices}


def deepspeed():
    import deepspeed

    deepspeed.init_distributed()
    found = []
    for stage in range(4):
        model = classifier()
        config = {"train_micro_batch_size_per_gpu": 16 // dist.get_world_size()}
        config |= {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
        adam = torch.optim.AdamW(model.parameters(), lr=0.02)
        engine, *_ = deepspeed.initialize(model=model, optimizer=adam, config=config)
        found.append(learn(engine, lambda loss, by=engine: (by.backward(loss), by.step())))
        engine.save_checkpoint("saved", tag=str(stage))
        engine.load_checkpoint("saved", tag=str(stage))
    return {name: [each[name] for each in found] for name in found[0]}


def work(config):
    from ray.train.torch import prepare_model

    model = prepare_model(classifier())
    adam = torch.optim.AdamW(model.parameters(), lr=0.02)
    found = learn(model, lambda loss: (adam.zero_grad(), loss.backward(), adam.step()))
    config["report"].write_text(json.dumps(found))


def ray():
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=4, include_dashboard=False)
    asked = ray.remote(num_gpus=1)(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
    seen = ray.get([asked.remote() for _ in range(2)])
    workers = ScalingConfig(num_workers=torch.cuda.device_count(), use_gpu=True)
    options = {"scaling_config": workers, "run_config": RunConfig(storage_path=os.getcwd())}
    TorchTrainer(work, train_loop_config={"report": report}, **options).fit()
    return {"seen": seen, **json.loads(report.read_text())}


def keras():
    import keras
    from keras import layers

    parts = [layers.Reshape((6, 1)), layers.Conv1D(8, 3), layers.LSTM(8)]
    model = keras.Sequential([*parts, layers.Dense(2, activation="softmax")])
    model.build((16, 6))
    torch.manual_seed(0)
    model.set_weights([torch.randn(each.shape).numpy() / 4 for each in model.weights])
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
    fitted = model.fit(points.numpy(), labels.numpy(), 16, epochs=12, shuffle=False, verbose=0)
    model.save("model.keras")
    models = [model, keras.models.load_model("model.keras")]
    one, other = (each.predict(points.numpy(), verbose=0).tolist() for each in models)
    devices = sorted({str(each.value.device) for each in model.weights})
    return {"losses": fitted.history["loss"], "devices": devices, "same": one == other}


def stable_baselines3():
    import stable_baselines3 as library

    found = {"devices": [], "learned": True, "same": True}
    for name, task in {"PPO": "CartPole-v1", "DQN": "CartPole-v1", "SAC": "Pendulum-v1"}.items():
        options = {"n_steps": 64} if name == "PPO" else {"learning_starts": 32}
        kind = getattr(library, name)
        agent = kind("MlpPolicy", task, seed=0, device="cuda", **options)
        before = [each.clone() for each in agent.policy.parameters()]
        agent.learn(128).save(name)
        after = [list(each.policy.parameters()) for each in (agent, kind.load(name))]
        found["devices"] += {str(each.device) for each in after[1]}
        found["learned"] &= not all(map(torch.equal, before, after[0]))
        found["same"] &= all(map(torch.equal, *after))
    return found


def note_rank(trainer):
    (Path(trainer.args.project) / f"rank{os.environ['RANK']}").write_text(str(trainer.device))


def ultralytics():
    os.environ["YOLO_CONFIG_DIR"] = os.getcwd()
    from PIL import Image
    from ultralytics import YOLO

    for kind in ("images", "labels"):
        Path("data", kind).mkdir(parents=True)
    for i in range(8):
        pixels = random.Random(i).randbytes(64 * 64 * 3)
        Image.frombytes("RGB", (64, 64), pixels).save(f"data/images/{i}.png")
        Path(f"data/labels/{i}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    images = {"path": os.path.abspath("data"), "train": "images", "val": "images"}
    Path("data.yaml").write_text(json.dumps({**images, "names": {0: "thing"}}))
    model = YOLO("yolov8n.yaml")
    model.add_callback("on_train_epoch_end", note_rank)
    options = {"imgsz": 64, "batch": 4, "workers": 0, "plots": False, "project": os.getcwd()}
    model.train(data="data.yaml", epochs=2, device="0,1", **options)
    (found,) = YOLO(model.trainer.best).predict("data/images/0.png", device=1, conf=1e-9)
    devices = [path.read_text() for path in sorted(Path().glob("rank*"))]
    return {"devices": [*devices, str(found.boxes.data.device)]}


found = globals()[sys.argv[1]]()
if os.environ.get("RANK", "0") == "0":
    print(json.dumps(found), flush=True)
