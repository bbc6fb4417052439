# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer on as many ranks as there are: `Trainer(strategy=hspmd.lightning.Strategy())`. See doc/trainers.md.

It trains as if it were alone: a batch of its DataLoader is a micro-batch, and accumulate_grad_batches of these are a step, whatever the
number of ranks. All work of a step is done where the Trainer asks for the loss of its last micro-batch; what else it does then (backward,
optimizer, schedule) has been done already, so that a step is made by all ranks or by none."""
import math
import os
import sys

import torch
from torch.utils.data import RandomSampler, SequentialSampler

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    import lightning_fabric.utilities.rank_zero as fabric_rank_zero
    import pytorch_lightning as pl
    from pytorch_lightning.trainer import call
    from pytorch_lightning.utilities import rank_zero
else:
    import lightning.fabric.utilities.rank_zero as fabric_rank_zero
    import lightning.pytorch as pl
    from lightning.pytorch.trainer import call
    from lightning.pytorch.utilities import rank_zero

from hspmd import control, member
from hspmd.replicated import Elastic
from hspmd.trainers import Idle, see_one_gpu

see_one_gpu()


class _Turns:
    """In the place of the DataLoader: as many turns for each step as the Trainer expects micro-batches. Each yields the first micro-batch
    of the dataset, for hooks that look at batches."""

    num_workers = 0

    def __init__(self, loader, batches, per_step):
        self.dataset, self.batch_size, self.per_step, self.steps = loader.dataset, loader.batch_size, per_step, batches // per_step
        self._first = loader.collate_fn([loader.dataset[i] for i in range(loader.batch_size)])
        if not self.steps:
            raise ValueError(f"hspmd: {batches} micro-batches are less than a step of {per_step}")

    def __len__(self):
        return self.steps * self.per_step

    def __iter__(self):
        for _ in range(len(self)):
            yield self._first

    # With these the Trainer does not warn of a DataLoader that begins anew after a resume.

    def state_dict(self):
        return {}

    def load_state_dict(self, saved):
        pass


class _Schedules:
    """The module's schedules, each stepped where the Trainer would do it, but within the step."""

    def __init__(self, strategy, configs):
        self._strategy, self._all = strategy, [(c.scheduler, c.interval, c.frequency) for c in configs]

    def step(self):
        turns, step = self._strategy.turns, self._strategy.elastic.step
        epoch, within = divmod(step, turns.steps)
        for scheduler, interval, frequency in self._all:
            count = (within + 1) * turns.per_step if interval == "step" else epoch + 1
            if count % frequency == 0 and (interval == "step" or within == turns.steps - 1):
                self._strategy.lightning_module.lr_scheduler_step(scheduler, None)

    def state_dict(self):
        return [scheduler.state_dict() for scheduler, _, _ in self._all]

    def load_state_dict(self, saved):
        for (scheduler, _, _), state in zip(self._all, saved):
            scheduler.load_state_dict(state)


class _Callbacks:
    """What callbacks have noted so far, for ranks that join."""

    def __init__(self, trainer):
        self._callbacks = trainer.callbacks

    def state_dict(self):
        return {c.state_key: c.state_dict() for c in self._callbacks}

    def load_state_dict(self, saved):
        for c in self._callbacks:
            if saved.get(c.state_key):
                c.load_state_dict(saved[c.state_key])


class Strategy(pl.strategies.SingleDeviceStrategy):
    """elastic: the hspmd.Elastic that trains; there from the beginning of the first epoch."""

    strategy_name = "hspmd"
    elastic = turns = _trainer = None
    _failed = _finished = False

    def __init__(self, **options):
        super().__init__(device=member.device(), **options)
        self._become(control.first_rank())

    # ---- what the Trainer is made of

    def setup(self, trainer):
        super().setup(trainer)
        self._trainer = trainer
        if trainer.state.fn == "fit":
            self._refuse(trainer)

    def _refuse(self, trainer):
        module = self.lightning_module
        for name, wrong in (
            ("automatic_optimization = False", not module.automatic_optimization),
            (f"{len(self.optimizers)} optimizers", len(self.optimizers) != 1),
            ("a gradient scaler (precision 16)", getattr(self.precision_plugin, "scaler", None) is not None),
            ("ReduceLROnPlateau", any(c.reduce_on_plateau for c in self.lr_scheduler_configs)),
            ("overfit_batches", trainer.overfit_batches > 0),
            ("reload_dataloaders_every_n_epochs", trainer.reload_dataloaders_every_n_epochs > 0),
            ("limit_train_batches as a fraction", isinstance(trainer.limit_train_batches, float) and trainer.limit_train_batches != 1.0),
            ("a second fit() in one process", self._finished),
        ):  # fmt: skip
            if wrong:
                raise ValueError(f"hspmd: Trainer with {name} is not supported")

    def process_dataloader(self, dataloader):
        if not self._trainer.training:
            return dataloader
        sampler = getattr(dataloader, "sampler", None)  # that of a dataset without a length is another one
        if self.turns or getattr(dataloader, "batch_size", None) is None or type(sampler) not in (RandomSampler, SequentialSampler):
            raise ValueError("hspmd: Trainer needs one DataLoader, with a batch_size, without a sampler, of a dataset with a length")
        batches, limit = len(dataloader.dataset) // dataloader.batch_size, self._trainer.limit_train_batches
        self.turns = _Turns(dataloader, min(batches, limit) if isinstance(limit, int) else batches, self._trainer.accumulate_grad_batches)
        self._begin(dataloader, type(sampler) is RandomSampler)
        return self.turns

    def _begin(self, loader, shuffle):
        trainer, extra = self._trainer, {"callbacks": _Callbacks(self._trainer)}
        scheduler = _Schedules(self, self.lr_scheduler_configs) if self.lr_scheduler_configs else None
        for config in self.lr_scheduler_configs:
            config.scheduler = Idle(config.scheduler)
        self.elastic = Elastic(
            self.lightning_module, self.optimizers[0], batch=loader.batch_size * self.turns.per_step, micro=loader.batch_size,
            scheduler=scheduler, extra=extra, clip=self._gradients_are_summed,
            seed=int(os.environ.get("PL_GLOBAL_SEED", 0)),  # that of seed_everything()
        )  # fmt: skip
        self.elastic.step = trainer.global_step  # of a checkpoint of the Trainer's own
        self.elastic.samples_from(loader.dataset, shuffle=shuffle, collate=loader.collate_fn)
        self.elastic.begin()
        if self.elastic.step != trainer.global_step:
            self._set_position(trainer.fit_loop, self.elastic.step)
        limits = [trainer.max_steps] if trainer.max_steps >= 0 else []
        epochs = trainer.fit_loop.max_epochs
        self._total = min([*limits, epochs * self.turns.steps if epochs is not None and epochs >= 0 else math.inf])
        self._min_steps = trainer.fit_loop.epoch_loop.min_steps
        self._follow()

    def _set_position(self, fit, step):
        """All counters of the Trainer as if it had made so many steps."""
        epoch, within = divmod(step, self.turns.steps)
        for count in (fit.epoch_progress.total, fit.epoch_progress.current):
            count.ready = count.started = epoch + (within > 0)
            count.processed = count.completed = epoch
        loop = fit.epoch_loop
        optimizer = loop.automatic_optimization.optim_progress.optimizer
        for progress in (loop.batch_progress, optimizer.step, optimizer.zero_grad, loop.scheduler_progress):
            each = self.turns.per_step if progress is loop.batch_progress else 1
            for count, steps in ((progress.total, step), (progress.current, within)):
                for name in vars(count):
                    setattr(count, name, steps * each)
        loop._batches_that_stepped = step
        fit.restarting = within > 0  # in the middle of an epoch

    def _become(self, rank):
        self.global_rank = rank
        fabric_rank_zero.rank_zero_only.rank = rank_zero.rank_zero_only.rank = rank

    def _follow(self):
        """The rank may be another one, and the training over, after any step."""
        self._become(self.elastic.rank)
        # All ranks stop after the same step: one is told of another's wish with the sums of the next.
        if self.elastic.asked_to_end:
            self._trainer.should_stop = True
        self._trainer.fit_loop.epoch_loop.min_steps = self._min_steps if self.elastic.asked_to_end else self.elastic.step + 1

    # ---- a step

    def training_step(self, *args, **kwargs):
        if self.elastic is None or self._trainer.fit_loop._should_accumulate():
            return torch.zeros((), device=self.root_device)
        self.elastic.ask_to_end = self._trainer.should_stop
        index = self._trainer.fit_loop.epoch_loop.batch_idx + 1 - self.turns.per_step
        self.elastic.make_step(lambda number: self._micro_batch(number, index + number), self._total)
        self._follow()
        return torch.tensor(self.elastic.loss, device=self.root_device)

    def _micro_batch(self, number, index):
        module, precision = self.lightning_module, self.precision_plugin
        batch = precision.convert_input(self.elastic.samples(number))
        batch = super().batch_to_device(module._on_before_batch_transfer(batch, dataloader_idx=0), dataloader_idx=0)
        self._trainer._logger_connector.on_batch_start(batch)
        loop = self._trainer.fit_loop.epoch_loop
        result = super().training_step(*loop._build_kwargs({}, batch, index).values())
        loss = result["loss"] if isinstance(result, dict) else result
        if loss is None:
            raise ValueError("hspmd: a training_step() that returns no loss is not supported")
        n = float(result.get("n", self.turns.batch_size)) if isinstance(result, dict) else float(self.turns.batch_size)
        super().backward(loss * n, self.optimizers[0])
        return float(loss.detach()) * n, n

    def _gradients_are_summed(self):
        self.precision_plugin._after_closure(self.lightning_module, self.optimizers[0])

    def backward(self, closure_loss, optimizer, *args, **kwargs):
        return closure_loss

    def optimizer_step(self, optimizer, closure, model=None, **kwargs):
        return closure()

    # ---- what one rank does for all

    @property
    def is_global_zero(self):
        return self.global_rank == 0

    def on_exception(self, exception):
        self._failed = True

    def teardown(self):
        if self.elastic is not None and not self._failed and not self._finished:
            self._finished = True
            self.elastic.finish()
        super().teardown()
