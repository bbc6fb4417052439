# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer on as many ranks as there are: `from hspmd.hf import Trainer`, and nothing else. See doc/trainers.md.

It trains as if it were alone: per_device_train_batch_size samples are a micro-batch, and gradient_accumulation_steps of these are a step,
whatever the number of ranks. All work of a step is done where the Trainer asks for its last micro-batch; what else it does then (clipping,
optimizer, schedule) has been done already, so that a step is made by all ranks or by none."""
import inspect

import torch
import transformers

from hspmd.replicated import Elastic
from hspmd.trainers import Idle, see_one_gpu

_KEPT = ("log_history", "best_metric", "best_global_step", "best_model_checkpoint", "total_flos", "num_input_tokens_seen")
VERSIONS = "5.3 or later, before 6"
# Methods of the Trainer that are not documented, with the parameters that they are called with here, or by it.
_PRIVATE = {
    "_prepare_for_training": "max_steps, train_dataloader, resume_from_checkpoint",
    "_finalize_training": "trial, num_train_samples, start_time",
    "_get_num_items_in_batch": "batch_samples, device",
    "_get_learning_rate": "",
    "_clip_grad_norm": "model",
    "_get_grad_norm": "model, grad_norm",
    "_save_checkpoint": "model, trial",
    "_remove_unused_columns": "dataset, description",
    "_get_collator_with_removed_columns": "data_collator, description",
}

see_one_gpu()


def unlike(trainer):
    """What a class of transformers lacks of what is needed here; None: nothing."""
    for name, parameters in _PRIVATE.items():
        method = getattr(trainer, name, None)
        own = ", ".join(list(inspect.signature(method).parameters)[1:]) if callable(method) else None
        if own != parameters:
            return f"{name}({parameters})" + ("" if own is None else f", but {name}({own})")
    return None


class _Turns:
    """In the place of the DataLoader: counts micro-batches, as many for each step as the Trainer expects."""

    def __init__(self, trainer, dataset, batch, micro):
        self.trainer, self.dataset, self.batch_size = trainer, dataset, micro
        self.steps, self.per_step = len(dataset) // batch, batch // micro
        if not self.steps:
            raise ValueError(f"hspmd: {len(dataset)} samples are less than a step of {batch}")

    def __len__(self):
        return self.steps * self.per_step

    def __iter__(self):
        """Up to the end of the epoch in which the ranks are. The Trainer of one that has joined counts its epochs from then on."""
        elastic = self.trainer.elastic
        end = min((elastic.step // self.steps + 1) * self.steps, self.trainer.state.max_steps)
        while elastic.step < end:
            for _ in range(self.per_step):
                yield {}


class _Log:
    """What the Trainer has noted so far, for ranks that join."""

    def __init__(self, trainer):
        self._trainer = trainer

    def state_dict(self):
        return {name: getattr(self._trainer.state, name) for name in _KEPT}

    def load_state_dict(self, saved):
        for name, value in saved.items():
            setattr(self._trainer.state, name, value)


class _Position(transformers.TrainerCallback):
    """A rank that has joined did not count from the beginning."""

    def __init__(self, trainer):
        self._trainer = trainer

    def on_step_end(self, args, state, control, **_):
        state.epoch = state.global_step / self._trainer.turns.steps


class Trainer(transformers.Trainer):
    """elastic: the hspmd.Elastic that trains; there from the beginning of train()."""

    elastic = turns = _rate = None
    _flops = 0.0

    def __init__(self, *args, **kwargs):
        lacks = unlike(transformers.Trainer)
        if lacks:
            raise RuntimeError(f"hspmd: the Trainer of transformers {transformers.__version__} has no {lacks}: use {VERSIONS}")
        super().__init__(*args, **kwargs)
        self.callback_handler.callbacks.insert(0, _Position(self))

    # ---- what the Trainer is made of

    def _refuse(self):
        a = self.args
        for name, wrong in (
            ("fp16", a.fp16), ("fsdp", a.fsdp), ("deepspeed", a.deepspeed), ("auto_find_batch_size", a.auto_find_batch_size),
            ("world_size > 1", a.world_size > 1), ("n_gpu > 1", a.n_gpu > 1),
            ("a train_dataset without a length", not hasattr(self.train_dataset, "__len__")),
            (f"train_sampling_strategy {a.train_sampling_strategy}", a.train_sampling_strategy not in ("random", "sequential")),
        ):  # fmt: skip
            if wrong:
                raise ValueError(f"hspmd: Trainer with {name} is not supported")

    def get_train_dataloader(self):
        self._refuse()
        self.args.ignore_data_skip = True  # a resumed run goes on with the samples of its step by itself
        self.turns = _Turns(self, self.train_dataset, self._samples_of_step(), self._train_batch_size)
        return self.turns

    def _samples_of_step(self):
        return self._train_batch_size * self.args.gradient_accumulation_steps

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        model, loader = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError("hspmd: Trainer with ReduceLROnPlateau is not supported")
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        self.elastic = Elastic(
            model, optimizer, batch=self._samples_of_step(), micro=self._train_batch_size, scheduler=self.lr_scheduler,
            extra={"trainer": _Log(self)}, clip=self.args.max_grad_norm or None, seed=self.args.seed,
        )  # fmt: skip
        self.elastic.step = self.state.global_step  # of a checkpoint of the Trainer's own
        self.optimizer._opt_called = True  # by the name of the inner one, which the schedule does not know: no warning
        self.lr_scheduler = Idle(self.lr_scheduler)
        self.callback_handler.lr_scheduler = self.lr_scheduler
        dataset, collate = self.train_dataset, self.data_collator
        if hasattr(dataset, "column_names") and hasattr(dataset, "set_format"):
            dataset = self._remove_unused_columns(dataset, description="Training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="Training")
        self.elastic.samples_from(dataset, shuffle=self.args.train_sampling_strategy == "random", collate=collate)
        self.elastic.begin()
        self._follow(self.elastic.step)
        return model, loader

    def _follow(self, step):
        self.state.global_step = step
        self.state.is_world_process_zero = self.state.is_local_process_zero = self.elastic.rank == 0

    # ---- a step

    def training_step(self, model, inputs, num_items_in_batch=None):
        if not self.accelerator.gradient_state.sync_gradients:
            return torch.tensor(0.0, device=self.args.device)
        self._flops = 0.0
        self.elastic.make_step(lambda number: self._micro_batch(model, number), self.state.max_steps)
        self._follow(self.elastic.step - 1)  # the Trainer counts this one itself
        return torch.tensor(self.elastic.loss, device=self.args.device)

    def _micro_batch(self, model, number):
        inputs = self.elastic.samples(number)
        n = super()._get_num_items_in_batch([inputs], self.args.device)
        self._rate = super()._get_learning_rate()
        self._flops += float(super().floating_point_ops(inputs))
        self.current_gradient_accumulation_steps = 1
        loss = super().training_step(model, inputs, None if n is None else 1)
        return float(loss), 1.0 if n is None else float(n)

    def floating_point_ops(self, inputs):
        if inputs:
            return super().floating_point_ops(inputs)
        flops, self._flops = self._flops, 0.0
        return flops * self.turns.per_step / max(1, self.elastic.shares[self.elastic.rank])

    def _get_learning_rate(self):
        rate, self._rate = self._rate, None  # the schedule is a step ahead
        return super()._get_learning_rate() if rate is None else rate

    def _clip_grad_norm(self, model):
        return self.elastic.grad_norm

    def _get_grad_norm(self, model, grad_norm=None):
        return self.elastic.grad_norm

    # ---- what one rank does for all

    def is_world_process_zero(self):
        return self.elastic is None or self.elastic.rank == 0

    is_local_process_zero = is_world_process_zero

    def _save_checkpoint(self, *args, **kwargs):
        if self.is_world_process_zero():
            super()._save_checkpoint(*args, **kwargs)

    def save_model(self, *args, **kwargs):
        if self.is_world_process_zero():
            super().save_model(*args, **kwargs)

    def save_state(self):
        if self.is_world_process_zero():
            super().save_state()

    def _finalize_training(self, *args, **kwargs):
        self.elastic.finish()
        return super()._finalize_training(*args, **kwargs)
