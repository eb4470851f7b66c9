"""Every loss by name: what a source could not tell, what a reader could not keep, what a chat template changes.

A trajectory's `losses` are `code` or `code:COUNT`; COUNT is characters for `content_*` and `reasoning_dropped`, and
otherwise how often it happened. A reader that adds a code describes it here: a test reads the sources.
"""

from __future__ import annotations

LOSSES = {
    # What the source could not tell.
    "no_system_prompt": "the source does not record the system prompt",
    "partial_system_prompt": "only a part of the system prompt is recorded (a policy without its frame)",
    "no_tool_schemas": "tools are called, but their schemas are not recorded",
    "no_reward": "a run without its reward",
    "no_query": "the question is not in the record",
    "prompt_unknown": "what stood around the question in the prompt is not recorded",
    "no_last_reply": "requests are recorded without their replies: the last one is not known",
    "missing_calls": "model calls of the run are not in the record (a condenser's, a subagent's)",
    "steps_without_call": "steps of the agent that no model call made",
    "truncated_source": "the source itself cut something off (attribute limits, elided observations)",
    "content_not_recorded": "the source names a message without its text",
    "history_on_server": "earlier messages are only named by an id of the server",
    "reasoning_encrypted": "thinking is encrypted or redacted by the provider",
    "results_as_user": "what actions did was said by the user; it is kept as tool results",
    "calls_untold": "no tool call is recorded; the first versions of the format leave them out",
    "synthetic_answers": "answers that the agent's framework put in the model's mouth are left out",
    "results_moved": "long results were moved to files: the model saw their beginning, and so does the record",
    "hosted_tools": "the provider ran tools itself; what they answered is not recorded",
    "tools_as_text": "the model saw tools, calls and results as text; they are kept as calls and results",
    "prompt_not_exact": "what the agent's framework adds around messages (exit codes, hints) is not recorded",
    "roles_from_text": "messages were recorded as one text; who spoke is read from the beginnings of its lines",
    "results_were_objects": "tool results were recorded as objects: the text that the model saw is not known",
    "usage_disagrees": "token counts do not add up to the total that the source gives",
    "parameters_untold": "tools are recorded without the schema of their parameters",
    "batching_unknown": "which calls were made at once is not recorded",
    "roles_as_user": "what the system and the tools said is recorded as the user's",
    "calls_as_text": "calls are recorded as text of the message",
    "arguments_were_objects": "arguments were recorded as objects: the model's own spelling is not known",
    "ids_not_append_only": "recorded prompt ids do not continue the ids before them",
    # What the record lacks.
    "call_without_result": "a call that nothing answers",
    "ends_with_call": "the run ends with a call that nothing answers",
    "result_without_call": "a result that answers no call",
    "results_out_of_order": "results that come after a later user message",
    "interrupted": "the run was cancelled or ended in an error",
    # What the reader could not keep.
    "unknown_items": "items of a kind that the reader does not know",
    "non_text_content": "images, audio and other parts that are no text",
    "content_not_text": "content that is neither text nor parts, kept as JSON",
    "trailing_user_dropped": "user messages at the end that nothing answers",
    "invalid_characters": "half characters replaced by U+FFFD",
    "not_a_number": "NaN or Infinity, which JSON does not have, is kept as null",
    "copied_context": "the prompt begins with steps copied from another run: context, and no turns of this one",
    "copied_context_dropped": "steps copied from another run are not counted again",
    "branches_dropped": "other branches of a conversation tree (rewinds, regenerations)",
    "demonstration": "a demonstration of another run stands in the prompt",
    "already_compacted": "context was summarised or dropped while the run was recorded",
    "ids_dropped": "recorded token ids are left out: redaction changed the text they spell",
    "duplicate_usage": "usage repeated by the source, counted once",
    "user_side_calls": "calls that the user made are left out of the agent's prompt",
}

RENDERING = {
    # What a chat template changes, in the rows of a replay and in `traces show --tokens`.
    "template_without_tools": "the template prints no tools: calls and schemas are put into the text",
    "tool_role_as_user": "the template knows no tool role: results are put to the user",
    "system_as_user": "the template knows no system role",
    "developer_as_system": "the template prints nothing of a developer's message: it is put to the system",
    "roles_forced": "messages of one role in a row, for a template that wants roles to alternate",
    "template_not_prefix_preserving": "the template rewrites earlier messages; what a session holds stays",
    "generation_prompt_differs": "the prompt for an answer is not how the recorded answer begins",
    "reply_printed_otherwise": "what the model just wrote is printed otherwise later on",
    "arguments_reserialised": "calls whose printed arguments differ from the recorded text",
    "arguments_not_an_object": "arguments that are no JSON object, for a template that wants one",
    "call_dropped": "characters of calls that do not come out",
    "call_ids_printed": "ids of calls that the template prints; its model may know ids of one form only",
    "results_attributed_by_order": "results in another order than their calls, for a template that prints no ids",
    "schema_text_dropped": "characters of names and descriptions of tools that do not come out",
    "content_dropped": "characters of content that do not come out",
    "content_trimmed": "blanks at the ends of content that do not come out",
    "content_escaped": "characters that the template adds by writing content in JSON's spelling",
    "reasoning_dropped": "characters of thinking that do not come out",
    "empty_thinking_added": "an empty thought that the template puts before the recorded one",
}


def code_of(loss: str) -> str:
    """A loss without its count."""
    return loss.partition(":")[0]
