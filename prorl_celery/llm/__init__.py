"""The model client: conversations with inference backends, in token ids or in messages.

For others: `endpoint.Endpoint`, `loop.ModelLoop`, `request.ConversationRequest`, `conversation.open_conversation` (and
the protocol `conversation.Conversation`), `reply.Reply`, `calls.base.ToolCall`, `tokenizer.load_tokenizer`. The way of
a turn:

    conversation   asks for the next turn ------------------------------ chat (messages instead of ids)
      trajectory   every id so far, and the template's delta              chat_wire (the openai client)
        tokenizer, template
      completions  one call in vLLM's token form
        wire       POST, checks, what may be repeated
          loop     one asyncio thread per process; cancel and deadline
      calls        what the model wrote, taken apart; one module a form
    reply          what becomes a turn of the job's log

Nothing is imported here, so that a reader of one part does not pay for the others.
"""
