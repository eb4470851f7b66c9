"""The sentences of docs/formats.md."""

from __future__ import annotations

OPENING = """
`kvmill traces ingest PATH…` takes files, folders, glob patterns, `-` for standard input and addresses such as
`s3://bucket/key`. A file's format is found by trying its first records against every reader, never by its name: when
two readers claim it, both are named and `--format` decides; when none claims half of the records, the answer says what
was seen. `kvmill traces formats` lists the readers, `kvmill traces check PATH` reads without storing anything.
*Unverified* formats were built from descriptions; no file of another project has been read with them yet."""

FILES = """
## Files

UTF-8 JSON: one record a line, one list, or documents one after the other; CSV and TSV with a header; Parquet; streamed
answers (`data:` lines); zip archives of JSON (`.eval`), never unpacked to disk; plain or compressed with gzip, zstd,
bz2 or xz, whatever the name. A byte order mark, CRLF and blank lines are fine. Only one record is held in memory, at
most 64 MiB of it, and what a compressed file may unpack to is bounded. Any table of requests can be read by naming its
columns: `--columns arrival_s=TIMESTAMP,input_tokens=prompt,output_tokens=answer` (`arrival_ms=`, `arrival_ns=` for
other units)."""

RUNS = """
## What a run becomes

A trajectory is a **prefix** (everything up to the first user message and what the caller said right after it; a
greeting of the assistant before it included) and **turns**: one assistant message and the tool results until the next
assistant message. User messages in between go before the assistant message that answers them.

- Every character that was said is kept. A test counts the characters of records and of trajectories, role by role, with
  code that the readers do not share; where they differ, a loss says why.
- Argument strings are kept to the letter, beside what they parse to. Nothing is repaired.
- Content given as parts is joined with newlines; parts that are no text are left out (`non_text_content`), data
  in the place of parts is kept as JSON (`content_not_text`).
- Thinking is kept apart from the content.
- Usage falls in four disjoint buckets: fresh input, cache read, cache write, output.
- A log with one record per model call repeats the history in each. Of such a chain only the longest record stays; the
  usage of the others moves to their turns, and they are counted as `chained`. Records are never joined end to end.
- Labels are ground truth only. A reward that an agent gets for doing nothing, or that stands beside a gold action that
  was never made, is a finding (`reward_without_action`, `reward_without_gold_action`): such runs can make a policy that
  does nothing look good.
- Token ids that a server recorded are used by a replay where they are the model's own: their fingerprint is that of
  its tokenizer and template, or, without one, every turn decodes to what the template prints. For a run they are used
  as a whole or not at all.

An id is the source and twelve hex digits of a hash of the stored content, so ingesting a file twice changes nothing.
Ids of request rows also depend on the beginning of their log and on which of several equal rows it is."""

LOSSES = """
What the source could not tell, or what could not be kept, stays with the run and is counted at ingest:"""

RENDERED = """
Rendering for a model adds its own, in the rows of a replay and in `kvmill traces show ID --tokens --model NAME`;
numbers after a colon are counts, of characters for content, thinking, schemas and dropped calls:"""

DRIFT = """
`show --tokens` also says where a session and a server without sessions part. A session keeps the tokens it holds; a
server renders everything anew for each call. For every turn the first token that differs is shown with its cause:
earlier thinking dropped, earlier messages ended or rewritten otherwise, tokens that merge across messages. And it
counts the calls whose text the template prints otherwise than it was recorded, and by how many characters.

Control tokens that content only spells (`<|im_end|>` in a tool result) are encoded as plain text, in every field."""

REJECTS = """
## Rejects

A record that cannot be read never stops the others. It is written to `runs/RUN/rejects.jsonl` in the store with its
file, its place (line, row, or element of a list), the reason and the beginning of its text, and counted in the answer.
Of a streamed answer, in pieces that cannot be redacted, the text is only kept with `--no-redact`.
The exit code is 0 as long as every input had one usable record; with `--strict` any reject gives 3."""

REDACTION = """
On unless `--no-redact` is given, which the run records. Found in what was said, arguments, tool schemas, labels,
probes, metadata, and in what was refused; replaced by stand-ins of the same shape, the same for the same value
everywhere, also escaped in JSON, percent-encoded or in other letter case, so that an agent that copies an address still
does. What one place of a run explains is replaced in its other places too: a customer's name in prose, a number without
its dashes, a password in a command. The answer of `ingest` counts replacements by kind:"""

NOT_ANONYMOUS = """
Secrets are told by the shapes that providers document, by the words before them, and by where they stand: arguments of
programs (`curl -u`, `mysql -p`), headers, cookies, signed addresses, variables such as `STRIPE_KEY`. Cards, accounts
and most national ids have check digits; ids without strong ones are only taken after a word that names them, so order
numbers stay.
Addresses and numbers that are reserved for examples stay. Recorded token ids are dropped where text was replaced.

Stand-ins are derived by a hash with a key of the store, `redaction.key`, readable by its owner alone: without it a
guess cannot be confirmed, with it a second ingest finds its duplicates. Ids of runs that hold stand-ins therefore
differ from store to store, unless the key is copied. It is no anonymisation: names in free prose that no structured
place gives away, postal addresses, birthdays, telephone numbers abroad (`0049…`) or in blanks alone without a word
that says so, IBANs in small letters and whatever has no shape stay, and so do words as passwords outside of quoted
keys (`"password": "correcthorse"` is found, `password: correcthorse` is not), whatever is encoded otherwise (base64,
compressed), text that colours of a terminal or blanks of no width cut in two, and names of files and folders in the
reject file and in the run's own record.

In 100 tau-bench airline runs the names of customers and the user names made of them were replaced, and one address at a
real mail provider; no date, flight, reservation, order number or price. In the SWE-agent runs nothing but four mentions
of two machines' addresses; the bundled samples do not change."""

EXPORT = """
`kvmill traces export ID… --to atif|aiperf` writes trajectories as ATIF or as AIPerf's `mooncake_trace`. What is written
is read again, and its answer lists by name what did not come back:"""

REAL = """
Each file read by itself. Files that belong to another one (`queries.tsv`, `*.chatml.json`, challenges) are refused when
read alone. *Left out*: of the file's different texts of 40 characters and more (JSON inside strings taken apart) those
that stand in no trajectory, its tools, labels or metadata as they are; the three largest places are named. They are
settings, evaluations, telemetry's own fields, and copies of the same conversation in another spelling (Langfuse's
`trace.output`, the text form beside OpenHands' `raw_messages`)."""

ENGINES = """
## Faults of engines

Of thirty reported faults around traces, four lie in serving engines and cannot happen in ingest or replay. They can
spoil a *recording*, though, and nothing in the record shows it:

| row | fault | where |
|---|---|---|
| 7 | prefix caching, multi-token prediction and an FP8 cache together corrupt calls of identical prompts | vllm 50188 |
| 25 | on a partial prefix hit the model answers the first message of the session | mlx-serve 492 |
| 28 | the cached prefix freezes at the first tool call, and most of the prompt is prefilled again | MTPLX 121 |
| 30 | multimodal requests given as ids are decoded and encoded again, and routing is off by tokens | sglang 26555 |"""

SAMPLES = """
## Bundled samples

Synthetic runs, made by `kvmill.traces.samples.generate`, which says what they can show and what they cannot. They need
no store and no file:

- `--traces samples`: 80 runs. `registry`, a search agent, and `operations`, an agent reading logs; 11 turns, 8 probes
  and about 1.55k tokens each. Published figures rest on these.
- `--traces samples-more`: 80 runs. `coding`: functions or classes and their modules, defined early and asked for at the
  end. `planning`: who leads a team, and on which day that person has time. 11 turns, 8 probes,
  about 1.3k and 1.5k tokens.
- `--traces stress`: 12 runs of about 4k, 6k and 7.8k tokens with tool results of 500 to 2,000 tokens, and no probes.
  For memory and latency only.

The accuracy of a family is shown only where the full cache answers at least 60 % of its probes (from ten trajectories
on). Below that there is little left to lose: results leave it out, say so, and show log-likelihood and agreement."""
