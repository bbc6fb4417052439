#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A LightningModule on as many ranks as there are. Only the strategy is hspmd's.

    python lightning_module.py --steps 100
    hspmd run --local 3 -- python lightning_module.py --steps 100

Data are drawn from a seed. Dropout is on: losses are those of one process nevertheless."""
import argparse
import time

import lightning.pytorch as pl
import torch
import torch.nn.functional as F

from hspmd.lightning import Strategy

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--step-s", type=float, default=0, help="rest this long after each step")
parser.add_argument("--in-order", action="store_true", help="take the samples in their order, without dropout")
parser.add_argument("--alone", action="store_true", help="with Lightning's own strategy")
parser.add_argument("--output", default="lightning-output")
options = parser.parse_args()
torch.set_num_threads(1)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        x = torch.sin(i * torch.arange(1, 17) * 0.1)
        return x, x.sum(0, keepdim=True)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        drop = torch.nn.Dropout(0.0 if options.in_order else 0.1)
        self.net = torch.nn.Sequential(torch.nn.Linear(16, options.width), torch.nn.GELU(), drop, torch.nn.Linear(options.width, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("valid_loss", F.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        steps = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": steps, "interval": "step"}}


class Rest(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            if trainer.is_global_zero:
                print(f"step {trainer.global_step - 1}: loss {outputs['loss']:.7f}", flush=True)
            time.sleep(options.step_s)


pl.seed_everything(1)
trainer = pl.Trainer(
    strategy="auto" if options.alone else Strategy(),
    max_steps=options.steps,
    accumulate_grad_batches=6,  # micro-batches are a step
    gradient_clip_val=1.0,
    val_check_interval=60,
    callbacks=[Rest(), pl.callbacks.ModelCheckpoint(monitor="valid_loss", save_on_train_epoch_end=False)],
    logger=pl.loggers.CSVLogger(options.output, name=None),
    enable_progress_bar=False,
)
trainer.fit(
    Net(),
    torch.utils.data.DataLoader(Numbers(), batch_size=2, shuffle=not options.in_order),
    torch.utils.data.DataLoader(Numbers(), batch_size=50),
)
