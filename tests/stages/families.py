"""Chat templates that do with tools what the families' own do, in few words."""

from __future__ import annotations

from dataclasses import dataclass

from agrpo.tools.formats import CallFormat, deepseek, gemma, llama, mistral, tagged


@dataclass(frozen=True, kw_only=True)
class Family:
    """A template, the tokens it writes, and what is known of how such a model talks with tools."""

    template: str
    tokens: tuple[str, ...]
    end: str
    read: CallFormat
    call: str
    """Of `add`, with 4 and 5."""
    between: str
    """What stands between the end of the turn that called and the next one, where the tool says 9."""
    shown_by_template: bool = True
    recognised: str | None = None
    """The template for training that is advised, since this one rewrites and is known."""


CHATML = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
ASKS = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"
QWEN_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 4, "b": 5}}\n</tool_call>'

QWEN = (
    "{%- if tools %}{{ '<|im_start|>system\\nCall as <tool_call>' }}{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endif -%}"
    "{%- for m in messages -%}{%- if m.role == 'tool' -%}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}"
    "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}"
    "{%- elif m.role == 'assistant' -%}{{ '<|im_start|>assistant\\n' }}"
    "{%- if THINKS and loop.last and '<think>' not in m.content %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif -%}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n' + (c.function | tojson) + '\\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{%- else -%}" + CHATML + "{%- endif -%}{%- endfor -%}" + ASKS
)
QWEN_BETWEEN = "\n<|im_start|>user\n<tool_response>\n9\n</tool_response><|im_end|>\n<|im_start|>assistant\n"

LLAMA = (
    "{%- for m in messages -%}{{ '<|start_header_id|>' }}"
    "{%- if m.tool_calls -%}{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif -%}"
    "{{ 'assistant<|end_header_id|>\\n\\n' + (m.tool_calls[0].function | tojson) }}"
    "{%- elif m.role == 'tool' -%}{{ 'ipython<|end_header_id|>\\n\\n' + (m.content | tojson) }}"
    "{%- else -%}{{ m.role + '<|end_header_id|>\\n\\n' }}"
    "{%- if tools and loop.first %}{{ tools | tojson }}{% endif -%}{{ m.content }}{%- endif -%}{{ '<|eot_id|>' }}"
    "{%- endfor -%}{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif -%}"
)

DEEPSEEK_END = "<｜end▁of▁sentence｜>"
DEEPSEEK = (
    "{%- set ns = namespace(tool=false, first=true) -%}{{ tools | tojson if tools else '' }}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{%- set ns.tool = false -%}"
    "{%- elif m.role == 'assistant' and m.tool_calls -%}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name + '\\n```json\\n' + c.function.arguments + '\\n```' }}"
    "{% endfor %}{{ '<｜tool▁calls▁end｜>" + DEEPSEEK_END + "' }}"
    "{%- elif m.role == 'assistant' -%}"
    "{{ ('<｜tool▁outputs▁end｜>' if ns.tool else '<｜Assistant｜>') + m.content.split('</think>')[-1] + '"
    + DEEPSEEK_END
    + "' }}"
    "{%- set ns.tool = false -%}"
    "{%- elif m.role == 'tool' -%}{{ ('<｜tool▁outputs▁begin｜>' if ns.first else '\\n') + '<｜tool▁output▁begin｜>' + m.content }}"
    "{{ '<｜tool▁output▁end｜>' }}{%- set ns.tool = true -%}{%- set ns.first = false -%}{%- endif -%}{%- endfor -%}"
    "{%- if ns.tool %}{{ '<｜tool▁outputs▁end｜>' }}{% elif add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif -%}"
)

GEMMA = (
    "{%- set first = '' -%}{%- if messages[0].role == 'system' -%}{%- set first = messages[0].content + '\\n\\n' -%}"
    "{%- set messages = messages[1:] -%}{%- endif -%}"
    "{%- for m in messages -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('roles must alternate') }}{%- endif -%}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + (first if loop.first else '') }}"
    "{{ m.content | trim + '<end_of_turn>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif -%}"
)

FUNCTION_GEMMA = (
    "{%- for t in tools or [] %}{{ '<start_function_declaration>' + t.function.name }}{% endfor -%}"
    "{%- for m in messages -%}{%- if m.role == 'tool' -%}"
    "{{ '<start_function_response>' + m.content + '<end_function_response>' }}"
    "{%- else -%}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content }}"
    "{%- for c in m.tool_calls or [] %}{{ '<start_function_call>call:' + c.function.name }}{% endfor -%}"
    "{{ '<end_of_turn>\\n' }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif -%}"
)

MISTRAL = (
    "{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{{ ('[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' if tools else '') + '[INST]' + m.content + '[/INST]' }}"
    "{%- elif m.tool_calls -%}{{ '[TOOL_CALLS]' }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{{ '</s>' }}"
    "{%- elif m.role == 'assistant' %}{{ m.content + '</s>' }}"
    "{%- elif m.tool_call_id is not defined or m.tool_call_id | length != 9 %}{{ raise_exception('ids of 9 characters') }}"
    "{%- else %}{{ '[TOOL_RESULTS]{\"content\": ' + m.content + ', \"call_id\": \"' + m.tool_call_id + '\"}[/TOOL_RESULTS]' }}"
    "{%- endif -%}{%- endfor -%}"
)

CHATML_TOKENS = ("<|im_start|>", "<tool_call>", "</tool_call>")
GEMMA_RESULT = "<tool_response>\n9\n</tool_response>"

FAMILIES = {
    "qwen2.5": Family(
        template=QWEN.replace("THINKS", "false"),
        tokens=CHATML_TOKENS,
        end="<|im_end|>",
        read=tagged.read,
        call=QWEN_CALL,
        between=QWEN_BETWEEN,
    ),
    "qwen3": Family(
        template=QWEN.replace("THINKS", "true"),
        tokens=CHATML_TOKENS,
        end="<|im_end|>",
        read=tagged.read,
        call=f"<think>\nA sum.\n</think>\n\n{QWEN_CALL}",
        between=QWEN_BETWEEN,
    ),
    "smollm2": Family(
        template="{%- for m in messages -%}" + CHATML + "{%- endfor -%}" + ASKS,
        tokens=("<|im_start|>",),
        end="<|im_end|>",
        read=tagged.read,
        call='<tool_call>[{"name": "add", "arguments": {"a": 4, "b": 5}}]</tool_call>',
        between="\n<|im_start|>tool\n9<|im_end|>\n<|im_start|>assistant\n",
        shown_by_template=False,
    ),
    "llama3": Family(
        template=LLAMA,
        tokens=("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
        end="<|eot_id|>",
        read=llama.read,
        call='{"name": "add", "parameters": {"a": 4, "b": 5}}',
        between='<|start_header_id|>ipython<|end_header_id|>\n\n"9"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
    ),
    "deepseek-v3": Family(
        template=DEEPSEEK,
        tokens=("<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁end｜>"),
        end=DEEPSEEK_END,
        read=deepseek.read,
        call=(
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 4, "b": 5}\n```'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        between="<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>9<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
    ),
    "gemma3": Family(
        template=GEMMA,
        tokens=("<start_of_turn>",),
        end="<end_of_turn>",
        read=tagged.read,
        call='<tool_call>{"name": "add", "arguments": {"a": 4, "b": 5}}</tool_call>',
        between=f"\n<start_of_turn>user\n{GEMMA_RESULT}<end_of_turn>\n<start_of_turn>model\n",
        shown_by_template=False,
        recognised="gemma3_training",
    ),
    "functiongemma": Family(
        template=FUNCTION_GEMMA,
        tokens=("<start_of_turn>", "<start_function_call>", "<end_function_call>"),
        end="<end_of_turn>",
        read=gemma.read,
        call="<start_function_call>call:add{a:4,b:5}<end_function_call>",
        between="\n<start_function_response>9<end_function_response><start_of_turn>model\n",
    ),
    "mistral": Family(
        template=MISTRAL,
        tokens=("[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        end="</s>",
        read=mistral.read,
        call='[TOOL_CALLS]add[ARGS]{"a": 4, "b": 5}',
        between='[TOOL_RESULTS]{"content": 9, "call_id": "call00000"}[/TOOL_RESULTS]',
    ),
}
