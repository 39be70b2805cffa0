"""What is learned: data, model, loss and evaluation."""

from thinwire.tasks.base import Split, Task
from thinwire.tasks.classification import AbstractClassification, evaluating
from thinwire.tasks.digits import Digits
from thinwire.tasks.images import AbstractImages, Cifar10, Cifar10ResNet20, FashionMnist
from thinwire.tasks.table import TASKS, load_task

__all__ = [
    "TASKS",
    "AbstractClassification",
    "AbstractImages",
    "Cifar10",
    "Cifar10ResNet20",
    "Digits",
    "FashionMnist",
    "Split",
    "Task",
    "evaluating",
    "load_task",
]
