"""Train robots by a reward, or measure them, inside a container; needs Genesis and rsl-rl.

``train`` imports ``reward.py``, the agent's program, and prints the weights of the policy.
``measure`` reads ``weights.bin`` and prints what the robots did in each second. It runs no code of
the agent. Both print one line of base64.
"""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from pathlib import Path

import robot
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.modules import ActorCritic

from hyperdomain_training import inside

HIDDEN = (128, 64)
_STEPS = 24  # between two updates of the policy
_EPISODE = 20 * robot.STEPS_PER_SECOND


def main() -> None:
    """Do what the arguments ask for: a verb, the number of robots, that of updates or seconds, a
    seed, cpu or gpu, processor seconds, and a filter for system calls.
    """
    verb, count, length, seed, where, seconds, lines = sys.argv[1:]
    output = inside.take_output()
    torch.set_num_threads(1)
    robots = robot.Robots(int(count), int(seed), gpu=where == "gpu")
    inside.limit(float(seconds))
    if verb == "train":
        inside.forbid(lines)
        inside.write(output, train(robots, int(length)))
    else:
        inside.write(output, measure(robots, int(length)))


def train(robots: robot.Robots, updates: int) -> bytes:
    """Return the weights of a policy after its training, as float32."""
    sys.path.insert(0, str(Path.cwd()))
    reward = importlib.import_module("reward").reward
    policy = ActorCritic(robot.OBSERVATIONS, robot.OBSERVATIONS, robot.ACTIONS, HIDDEN, HIDDEN)
    trainer = PPO(
        policy,
        device=str(robots.device),
        num_learning_epochs=5,
        num_mini_batches=4,
        gamma=0.99,
        lam=0.95,
        entropy_coef=0.01,
        schedule="adaptive",
    )
    seen = [robot.OBSERVATIONS]
    trainer.init_storage(robots.count, _STEPS, seen, seen, [robot.ACTIONS])
    for _ in range(updates):
        with torch.inference_mode():
            for _ in range(_STEPS):
                observations = robots.observations()
                robots.move(trainer.act(observations, observations))
                rewards = reward(robots).reshape(robots.count).float()
                late = robots.steps >= _EPISODE
                done = robots.fell | late
                trainer.process_env_step(rewards, done, {"time_outs": late})
                robots.put_down(done)
            trainer.compute_returns(robots.observations())
        trainer.update()
    return b"".join(inside.to_bytes(one) for one in policy.actor.parameters())


def measure(robots: robot.Robots, seconds: int) -> bytes:
    """Return what robots did in each second, as float32: how far each went to the front and to the
    left, the greatest height of its trunk, and whether it is still on its feet.
    """
    policy = _policy(Path("weights.bin").read_bytes()).to(robots.device)
    rows = []
    upright = torch.ones_like(robots.fell)
    with torch.inference_mode():
        for _ in range(seconds):
            start = robots.place.clone()
            highest = start[:, 2].clone()
            for _ in range(robot.STEPS_PER_SECOND):
                robots.move(policy(robots.observations()))
                upright &= ~robots.fell
                highest = highest.maximum(robots.place[:, 2])
            moved = robots.place - start
            rows.append(torch.stack([moved[:, 0], moved[:, 1], highest, upright.float()], dim=1))
    return inside.to_bytes(torch.stack(rows, dim=1))


def _policy(weights: bytes) -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for before, after in pairwise((robot.OBSERVATIONS, *HIDDEN, robot.ACTIONS)):
        layers += [torch.nn.Linear(before, after), torch.nn.ELU()]
    policy = torch.nn.Sequential(*layers[:-1])
    values = torch.frombuffer(bytearray(weights), dtype=torch.float32)
    torch.nn.utils.vector_to_parameters(values, policy.parameters())
    return policy


if __name__ == "__main__":
    main()
