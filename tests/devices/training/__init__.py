"""Modules, optimizers, loss scaling, errors and interrupts of backward passes."""
