"""Requests of all kinds in which a prompt can be said, drawn by a seed."""

from __future__ import annotations

import dataclasses
import json
import random

from harness import corpus

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

ODD = (
    "naïve café – “quotes” … ½ €", "日本語の文章です。", "深層学習的快取", "مرحبا بالعالم", "שלום", "🙂👩‍👩‍👧‍👦🏳️‍🌈", "e\u0301\u0323 \u200b\u200d\ufeff", "\u2028\u2029\u0085", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈",
    "<s>", "</s>", "<s></s><s>", "<|end|>", "<|assistant|>", "<|im_start|>system", "[INST] </s> [/INST]", "{{ 7 * 7 }}{% if x %}", "\\n \\u0041 \\\\ \"", "\t\t\r\n\n   ", " ", "\x00\x01\x7f", "%s %d {}",
)


@dataclasses.dataclass
class Body:
    """path and fields of a request. tokenize: /tokenize of vLLM understands each of its fields as the path does."""

    path: str
    fields: dict
    tokenize: bool = True

    def text(self, rng: random.Random, **more) -> bytes:
        """The body with its fields in any order, in any way to write JSON."""
        fields = list((self.fields | more).items())
        rng.shuffle(fields)
        separators = rng.choice([(",", ":"), (", ", ": "), (" ,\n", " :\t")])
        return json.dumps(dict(fields), ensure_ascii=rng.random() < 0.5, separators=separators).encode()


class Bodies:
    """Draws them."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)

    def some(self, longest: int = 400) -> str:
        """Text: a passage, something odd, both, or nothing."""
        rng = self.rng
        parts = [corpus.passage(rng, rng.randrange(1, longest)) if rng.random() < 0.7 else rng.choice(ODD) for _ in range(rng.randrange(1, 4))]
        return rng.choice(["", " ", "\n"]).join(parts)

    def completion(self) -> Body:
        rng, fields = self.rng, {"prompt": self.some() or "x"}
        if rng.random() < 0.3:
            fields["add_special_tokens"] = rng.random() < 0.5
        return Body(COMPLETIONS, fields)

    def ids(self) -> Body:
        """A prompt that is token ids already: nothing is asked."""
        return Body(COMPLETIONS, {"prompt": [self.rng.randrange(2, 4096) for _ in range(self.rng.randrange(1, 200))]}, tokenize=False)

    def content(self, role: str):
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            return ""
        if kind < 0.35:
            return [{"type": "text", "text": self.some(200)} for _ in range(rng.randrange(1, 4))]
        return self.some()

    def messages(self) -> list[dict]:
        rng, messages = self.rng, []
        if rng.random() < 0.5:
            messages.append({"role": "system", "content": self.content("system")})
        for turn in range(rng.randrange(1, 5)):
            user = {"role": "user", "content": self.content("user")}
            if rng.random() < 0.1:
                user["name"] = self.rng.choice(["ann", "böb"])
            messages.append(user)
            if rng.random() < 0.7:
                messages.append(self.assistant(turn))
            if "tool_calls" in messages[-1]:
                messages.append({"role": "tool", "tool_call_id": f"call-{turn}", "content": self.content("tool")})
        return messages

    def assistant(self, turn: int) -> dict:
        rng = self.rng
        message = {"role": "assistant", "content": self.content("assistant")}
        if rng.random() < 0.2:
            message["reasoning"] = self.some(100)
        if rng.random() < 0.2:
            arguments = json.dumps({"city": self.some(30), "n": rng.randrange(100)})
            message["tool_calls"] = [{"id": f"call-{turn}", "type": "function", "function": {"name": "weather", "arguments": arguments}}]
            if rng.random() < 0.5:
                message["content"] = None
        return message

    def tools(self) -> list[dict]:
        schema = {"type": "object", "properties": {"city": {"type": "string", "description": self.some(60)}}, "required": ["city"]}
        names = self.rng.sample(["weather", "search", "forecast"], self.rng.randrange(1, 3))
        return [{"type": "function", "function": {"name": name, "description": self.some(80), "parameters": schema}} for name in names]

    def chat(self) -> Body:
        rng, fields = self.rng, {"messages": self.messages()}
        if rng.random() < 0.25:
            fields["tools"] = self.tools()
            if rng.random() < 0.5:
                fields["tool_choice"] = rng.choice(["none", "auto"])
        if rng.random() < 0.3:
            fields["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5} | ({"tone": self.some(20)} if rng.random() < 0.5 else {})
        ending = rng.random()
        if ending < 0.15:
            fields["add_generation_prompt"] = False
        elif ending < 0.3:
            fields["messages"].append({"role": "assistant", "content": "It is " + self.some(60).strip() + " so"})
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        elif ending < 0.4:
            fields["add_generation_prompt"] = True
        if rng.random() < 0.1:
            fields["add_special_tokens"] = rng.random() < 0.5
        return Body(CHAT, fields)

    def templated(self) -> Body:
        """A chat with what /tokenize takes as template arguments alone, or by another name."""
        rng, body = self.rng, self.chat()
        body.tokenize = False
        if rng.random() < 0.5:
            body.fields["documents"] = [{"title": self.some(20), "text": self.some(80)} for _ in range(rng.randrange(1, 3))]
        if rng.random() < 0.5:
            body.fields["reasoning_effort"] = rng.choice(["none", "low", "high"])
        for message in body.fields["messages"]:
            if "reasoning" in message and rng.random() < 0.7:
                message["reasoning_content"] = message["reasoning"]
                if rng.random() < 0.7:
                    del message["reasoning"]
        return body

    def own_template(self) -> Body:
        body = self.chat()
        body.fields["chat_template"] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}" + self.rng.choice(["", "{{ tools }}", "{% if add_generation_prompt %}>{% endif %}"])
        if body.fields.pop("continue_final_message", None):
            del body.fields["add_generation_prompt"]
        return body

    def truncated(self) -> Body:
        """Cut where it is long: then nobody but the engine knows the token ids."""
        body = self.rng.choice([self.completion, self.chat])()
        body.fields["truncate_prompt_tokens"] = self.rng.choice([1, 20, 100, 5000])
        if self.rng.random() < 0.5:
            body.fields["truncation_side"] = self.rng.choice(["left", "right"])
        return Body(body.path, body.fields, tokenize=False)

    def long(self) -> Body:
        text = corpus.passage(self.rng, self.rng.randrange(4_000, 20_000))
        if self.rng.random() < 0.5:
            return Body(COMPLETIONS, {"prompt": text})
        return Body(CHAT, {"messages": [{"role": "system", "content": text}, {"role": "user", "content": self.some()}]})

    def several(self) -> Body:
        """Two prompts in one request: the router asks for none."""
        return Body(COMPLETIONS, {"prompt": [self.some() or "x", self.some() or "y"]}, tokenize=False)

    def draw(self, count: int) -> list[Body]:
        kinds = [
            (self.completion, 25), (self.chat, 40), (self.templated, 15), (self.own_template, 5), (self.ids, 5), (self.truncated, 5), (self.long, 3), (self.several, 2),
        ]
        makers, weights = zip(*kinds)
        return [make() for make in self.rng.choices(makers, weights, k=count)]
