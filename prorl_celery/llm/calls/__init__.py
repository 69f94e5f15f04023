"""What a model wrote, taken apart: reasoning, text, tool calls; one module a form.

base       a call, a reply taken apart, reasoning, strict JSON
hermes     <tool_call>{"name", "arguments"}</tool_call>         Hermes, Qwen 2.5, Qwen 3
qwen_xml   <function=NAME><parameter=KEY>VALUE</parameter>      Qwen3-Coder
llama      {"name", "parameters"}, alone or after <|python_tag|> Llama 3
pythonic   [name(key=value)]                                    Llama 3.2 and 4
mistral    [TOOL_CALLS][{"name", "arguments"}], or name[ARGS]{} Mistral
forms      which of them a chat template asks for
"""
