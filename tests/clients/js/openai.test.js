// The OpenAI client for JavaScript, unchanged, against a running service.
// BASE_URL ends in /v1; API_KEY is one of the service's keys. Node's own test runner runs it.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const { BASE_URL: baseURL, API_KEY: apiKey } = process.env;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = "embedded";

const STORY = "Write a short story about a fox named Ida.";
const story = [{ role: "user", content: STORY }];
const asked = [
  {
    role: "user",
    content:
      "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer from Warsaw.",
  },
];
const Person = z.object({ name: z.string(), age: z.int(), job: z.string(), city: z.string() });
const MAX = { name: "Max Tanaka", age: 61, job: "lawyer", city: "Warsaw" };
const greedy = { model, temperature: 0, max_tokens: 16 };

test("the model is listed", async () => {
  const listed = [];
  for await (const each of client.models.list()) listed.push(each.id);
  assert.deepEqual(listed, [model]);
  assert.equal((await client.models.retrieve(model)).owned_by, "stepweave");
});

test("a chat is the same whole and streamed", async () => {
  const whole = await client.chat.completions.create({ ...greedy, messages: story });
  assert.equal(whole.choices[0].finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 16);
  const stream = await client.chat.completions.create({
    ...greedy,
    messages: story,
    stream: true,
    stream_options: { include_usage: true },
  });
  const pieces = [];
  let usage;
  for await (const chunk of stream) {
    if (chunk.choices.length) pieces.push(chunk.choices[0].delta.content ?? "");
    usage = chunk.usage ?? usage;
  }
  assert.equal(pieces.join(""), whole.choices[0].message.content);
  assert.ok(pieces.filter((each) => each).length > 1);
  assert.equal(usage.completion_tokens, 16);
  assert.equal(usage.total_tokens, usage.prompt_tokens + 16);
});

test("the client's stream gathers what its events tell", async () => {
  const stream = client.chat.completions.stream({
    ...greedy,
    messages: story,
    stream_options: { include_usage: true },
  });
  let told = "";
  stream.on("content", (delta) => (told += delta));
  assert.equal(await stream.finalContent(), told);
  assert.equal((await stream.totalUsage()).completion_tokens, 16);
});

test("several choices of a stream have their indices", async () => {
  const body = { model, messages: story, temperature: 1, seed: 3, n: 3, max_tokens: 8 };
  const whole = await client.chat.completions.create(body);
  const texts = ["", "", ""];
  for await (const chunk of await client.chat.completions.create({ ...body, stream: true }))
    for (const choice of chunk.choices) texts[choice.index] += choice.delta.content ?? "";
  assert.deepEqual(
    texts,
    whole.choices.map((each) => each.message.content),
  );
  assert.ok(new Set(texts).size > 1);
});

test("a zod schema is parsed, whole and streamed", async () => {
  const body = {
    model,
    messages: asked,
    temperature: 0,
    response_format: zodResponseFormat(Person, "person"),
  };
  const whole = await client.chat.completions.parse(body);
  assert.deepEqual(whole.choices[0].message.parsed, MAX);
  const final = await client.chat.completions.stream(body).finalChatCompletion();
  assert.deepEqual(final.choices[0].message.parsed, MAX);
});

test("a tool that must be called is, whole and streamed", async () => {
  const body = {
    model,
    messages: asked,
    temperature: 0,
    tools: [zodFunction({ name: "person", parameters: Person })],
    tool_choice: "required",
    parallel_tool_calls: false,
  };
  const whole = await client.chat.completions.parse(body);
  assert.equal(whole.choices[0].finish_reason, "tool_calls");
  const [call] = whole.choices[0].message.tool_calls;
  assert.deepEqual(call.function.parsed_arguments, MAX);
  const stream = client.chat.completions.stream(body);
  let deltas = 0;
  stream.on("tool_calls.function.arguments.delta", () => (deltas += 1));
  const final = await stream.finalChatCompletion();
  assert.deepEqual(final.choices[0].message.tool_calls[0].function.parsed_arguments, MAX);
  assert.ok(deltas > 3);
});

test("the client runs the named tool", async () => {
  const given = [];
  const tool = {
    type: "function",
    function: {
      name: "person",
      parameters: z.toJSONSchema(Person),
      parse: JSON.parse,
      function: (person) => given.push(person),
    },
  };
  const runner = client.chat.completions.runTools({
    model,
    messages: asked,
    temperature: 0,
    tools: [tool],
    tool_choice: { type: "function", function: { name: "person" } },
  });
  await runner.done();
  assert.deepEqual(given, [MAX]);
});

test("log-probabilities spell the text", async () => {
  const found = await client.chat.completions.create({
    ...greedy,
    messages: story,
    logprobs: true,
    top_logprobs: 2,
  });
  const [{ logprobs, message }] = found.choices;
  assert.equal(logprobs.content.length, 16);
  const bytes = logprobs.content.flatMap((each) => each.bytes);
  assert.equal(Buffer.from(bytes).toString(), message.content);
});

test("a text completion is the same whole and streamed", async () => {
  const body = { ...greedy, prompt: STORY, n: 2 };
  const whole = await client.completions.create(body);
  const texts = ["", ""];
  for await (const chunk of await client.completions.create({ ...body, stream: true }))
    for (const choice of chunk.choices) texts[choice.index] += choice.text;
  assert.deepEqual(
    texts,
    whole.choices.map((each) => each.text),
  );
});

test("errors are those that the client knows", async () => {
  const create = (body, by = client) =>
    by.chat.completions.create({ model, messages: story, ...body });
  await assert.rejects(create({ n: 1000 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.match(error.message, /n must be at most 128/);
    assert.deepEqual([error.param, error.type], ["n", "invalid_request_error"]);
    assert.ok(error.requestID);
    return true;
  });
  await assert.rejects(create({ model: "gpt" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  const stranger = new OpenAI({ baseURL, apiKey: "no", maxRetries: 0 });
  await assert.rejects(create({}, stranger), OpenAI.AuthenticationError);
});

test("headers come with the answer", async () => {
  const { data, response, request_id } = await client.chat.completions
    .create({ ...greedy, messages: story }, { headers: { "X-Request-Id": "js-1" } })
    .withResponse();
  assert.equal(request_id, "js-1");
  assert.equal(response.headers.get("content-type"), "application/json");
  assert.equal(data._request_id, "js-1");
});

// The service's log is what says that these two were cancelled; the caller reads it.
test("a stream that is aborted ends", async () => {
  const stream = await client.completions.create(
    { model, prompt: STORY, max_tokens: 900, temperature: 0, stream: true, ignore_eos: true },
    { headers: { "X-Request-Id": "js-aborted" } },
  );
  for await (const _ of stream) break;
  assert.ok(stream.controller.signal.aborted);
});

test("a call that takes too long ends", async () => {
  const slow = client.completions.create(
    { model, prompt: STORY, max_tokens: 900, temperature: 0, ignore_eos: true },
    { headers: { "X-Request-Id": "js-timeout" }, timeout: 60 },
  );
  await assert.rejects(slow, OpenAI.APIConnectionTimeoutError);
});

test("a response is the same whole, streamed and gathered", async () => {
  const body = { model, temperature: 0, max_output_tokens: 16, input: STORY };
  const whole = await client.responses.create(body);
  assert.equal(whole.status, "incomplete");
  assert.equal(whole.usage.output_tokens, 16);
  const deltas = [];
  let last;
  for await (const event of await client.responses.create({ ...body, stream: true })) {
    if (event.type === "response.output_text.delta") deltas.push(event.delta);
    last = event;
  }
  assert.equal(last.type, "response.incomplete");
  assert.equal(deltas.join(""), whole.output_text);
  assert.ok(deltas.length > 1);
});

test("a response is parsed by a schema of zod, and its calls by a tool of ours", async () => {
  const body = { model, temperature: 0, input: asked[0].content };
  const text = { format: zodTextFormat(Person, "person") };
  const parsed = await client.responses.parse({ ...body, text });
  assert.deepEqual(parsed.output_parsed, MAX);
  const stream = client.responses.stream({ ...body, text });
  assert.deepEqual((await stream.finalResponse()).output_parsed, MAX);
  const { schema } = text.format;
  const tools = [{ type: "function", name: "person", parameters: schema, strict: true }];
  const called = await client.responses.create({ ...body, tools, tool_choice: "required" });
  const [call] = called.output;
  assert.equal(call.type, "function_call");
  assert.deepEqual(JSON.parse(call.arguments), MAX);
  const told = { type: "function_call_output", call_id: call.call_id, output: "stored" };
  const input = [asked[0], ...called.output, told];
  const next = await client.responses.create({ ...body, input, tools, max_output_tokens: 4 });
  assert.ok(next.usage.input_tokens > called.usage.input_tokens);
});
