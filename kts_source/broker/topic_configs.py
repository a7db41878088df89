"""How topics are configured, as a broker tells (DescribeConfigs, KIP-133)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.broker.error_codes import error_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kts_source.broker.cluster import Cluster

_TOPIC: Final = 2


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Some configurations of a topic, where they are told.

    Attributes:
        values: Name to text, defaults of the broker included.
        refusal: Why there are none; empty where they are told.
    """

    values: Mapping[str, str]
    refusal: str = ""


def topic_configs(
    cluster: Cluster, topics: Iterable[str], names: Sequence[str]
) -> dict[str, TopicConfigs]:
    """Configurations of topics. A user without the ACL DescribeConfigs on one is refused that one.

    Args:
        cluster: Who is asked.
        topics: Which.
        names: Of the configurations.

    Raises:
        BrokerError: A broker refuses all of it, or does not know such a request.
        BrokerUnavailableError: No broker answers.
    """
    from kafka.protocol.admin.configs import DescribeConfigsRequest

    wanted = sorted(set(topics))
    resource = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=list(names))
        for topic in wanted
    ]
    if not resources:
        return {}
    request = DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False
    )
    found = dict.fromkeys(wanted, TopicConfigs({}, "the broker did not answer about it"))
    for one in cluster.ask_any(request).results:
        values = {config.name: config.value for config in one.configs if config.value is not None}
        refusal = error_name(one.error_code) if one.error_code else ""
        if one.resource_name in found:
            found[one.resource_name] = TopicConfigs({} if refusal else values, refusal)
    return found
