"""Changes of a group's configurations: pure functions of the state, with Kafka's answers to refused ones."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.statemachine.controller.controller_commands import AlterGroupConfigs, ReplaceGroupConfigs
from strandline.statemachine.controller.controller_state import ControllerState
from strandline.statemachine.controller.group_config import MAX_GROUPS, MAX_NAME_LENGTH, TABLE
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.kafka_errors import KafkaError, Refused

GroupCommand = AlterGroupConfigs | ReplaceGroupConfigs


def plan(present: Mapping[str, Configs], command: GroupCommand) -> Configs | Refused:
    """The configs that a group would have, given those of all groups. It need not exist, as in Kafka."""
    if not command.group:
        return Refused(KafkaError.INVALID_REQUEST, "Default group resources are not allowed.")
    if len(command.group) > MAX_NAME_LENGTH:
        reason = f"Configs are kept for groups whose ids have at most {MAX_NAME_LENGTH} characters."
        return Refused(KafkaError.INVALID_REQUEST, reason)
    if isinstance(command, AlterGroupConfigs):
        configs = TABLE.changed(present.get(command.group, {}), command.changes)
    else:
        configs = TABLE.from_pairs(command.configs)
    if isinstance(configs, Refused) or not configs or command.group in present:
        return configs
    if len(present) < MAX_GROUPS:
        return configs
    reason = f"{MAX_GROUPS} groups have configs: delete those of a group that needs none any more."
    return Refused(KafkaError.POLICY_VIOLATION, reason)


def configure(state: ControllerState, index: int, command: GroupCommand) -> int | Refused:
    """Change a group's configs; gives how many it has then."""
    planned = plan(state.group_configs, command)
    if isinstance(planned, Refused):
        return planned
    if planned != state.group_configs.get(command.group, {}):
        state.version = index
        if planned:
            state.group_configs[command.group] = planned
        else:
            del state.group_configs[command.group]
    return len(planned)
