"""The metrics page of the embedded engine, under vLLM's names, and its slots, which vLLM does not tell."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.embedded.driver import Generation
from gateway.embedded.model import EngineModel

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
_LABELS = ("engine", "model_name")


class Exposition:
    """Counters and gauges are read from the model when the page is asked for; times are observed as they come."""

    def __init__(self, model: EngineModel, model_name: str, max_model_len: int) -> None:
        self._model = model
        self._max_model_len = max_model_len
        self._labels = ("0", model_name)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._first_token = self._histogram("time_to_first_token_seconds", "Until the first token.")
        self._end_to_end = self._histogram("e2e_request_latency_seconds", "Until the last token.")
        self._queue = self._histogram("request_queue_time_seconds", "In the waiting queue.")
        self._prefill = self._histogram("request_prefill_time_seconds", "From admission to the first token.")
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the last.")
        self._per_token = self._histogram("request_time_per_output_token_seconds", "Mean time between tokens.")
        self._successes = Counter(
            "vllm:request_success", "Complete answers.", (*_LABELS, "finished_reason"), registry=self._registry
        )

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def observe(self, generation: Generation) -> None:
        """The times of a request that has finished."""
        submitted_at, finished_at = generation.submitted_at, generation.finished_at
        admitted_at, first_at = generation.admitted_at, generation.first_token_at
        if finished_at is None or admitted_at is None or first_at is None:
            return
        self._first_token.observe(first_at - submitted_at)
        self._end_to_end.observe(finished_at - submitted_at)
        self._queue.observe(max(0.0, admitted_at - submitted_at))
        self._prefill.observe(first_at - admitted_at)
        self._decode.observe(finished_at - first_at)
        if generation.num_tokens > 1:
            self._per_token.observe((finished_at - first_at) / (generation.num_tokens - 1))

    def succeeded(self, finish_reason: str) -> None:
        reason = "length" if finish_reason == "length" else "stop"
        self._successes.labels(*self._labels, reason).inc()

    def collect(self) -> Iterator[Metric]:
        model = self._model
        spec, counters = model.spec, model.counters
        yield self._gauge("num_requests_running", "Sequences in the batch.", model.num_running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", model.num_waiting)
        slots = GaugeMetricFamily("embedded:max_num_seqs", "Sequences that it may run at once.", labels=_LABELS)
        slots.add_metric(self._labels, spec.max_num_seqs)
        yield slots
        usage = model.pool.num_used / model.pool.num_blocks
        yield self._gauge("kv_cache_usage_perc", "Held share of the KV blocks, 0-1.", usage)
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up.", counters.prefix_queries_tokens),
            ("prefix_cache_hits", "Prompt tokens found.", counters.prefix_hits_tokens),
            ("num_preemptions", "Sequences preempted.", counters.preemptions),
            ("prompt_tokens", "Prompt tokens of prefilled requests.", counters.prompt_tokens),
            ("prompt_tokens_cached", "Prompt tokens that were not computed.", counters.prefix_hits_tokens),
            ("generation_tokens", "Tokens generated.", counters.generation_tokens),
        ):
            family = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family
        sources = CounterMetricFamily(
            "vllm:prompt_tokens_by_source", "Where prompt tokens came from.", labels=(*_LABELS, "source")
        )
        sources.add_metric((*self._labels, "local_compute"), counters.computed_prompt_tokens)
        sources.add_metric((*self._labels, "local_cache_hit"), counters.prefix_hits_tokens)
        yield sources
        info = {
            "block_size": str(spec.block_tokens),
            "enable_prefix_caching": "True",
            "kv_cache_max_concurrency": str(model.capacity_tokens / self._max_model_len),
            "kv_cache_size_tokens": str(model.capacity_tokens),
            "num_gpu_blocks": str(spec.num_blocks),
        }
        config = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=(*_LABELS, *info))
        config.add_metric((*self._labels, *info.values()), 1)
        yield config

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(f"vllm:{name}", text, _LABELS, buckets=_SECONDS, registry=self._registry)
        return histogram.labels(*self._labels)
