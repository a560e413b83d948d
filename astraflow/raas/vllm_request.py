"""A request in vLLM's words, and its answer in ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from astraflow.raas.engine import Generation, GenerationRequest

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput


def sampling_params(request: GenerationRequest) -> SamplingParams:
    """What vLLM is asked for: nothing is left out, and nothing is added that the request does not say."""
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    streams = request.progress is not None
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed & (2**63 - 1),
        max_tokens=request.max_tokens,
        stop=list(request.stop) or None,
        stop_token_ids=sorted(request.stop_token_ids),
        ignore_eos=True,  # what ends an answer is the request's to say
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(request.stop),
        output_kind=RequestOutputKind.CUMULATIVE if streams else RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def generation(output: RequestOutput, queue_s: float, decode_s: float) -> Generation:
    """The answer; vLLM does not say how long a prompt took, so prefill is part of decoding."""
    answer: Any = output.outputs[0]
    ids = list(answer.token_ids)
    versions = [int(span.version) for span in answer.weight_versions for _ in range(span.start, span.end)]
    return Generation(
        ids, list(answer.logprobs.logprobs), versions, answer.finish_reason, queue_s=queue_s, decode_s=decode_s
    )
