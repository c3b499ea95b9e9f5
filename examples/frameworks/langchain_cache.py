"""A cache of model answers for LangChain that survives the process: run this twice."""

from datetime import UTC, datetime

from langchain_core.language_models import FakeListChatModel

from scrubjay.adapters.langchain import ScrubjayCache

# With real models, for all of them: set_llm_cache(ScrubjayCache())
model = FakeListChatModel(responses=[f"It was {datetime.now(UTC):%H:%M:%S}."], cache=ScrubjayCache(ttl=86_400))
print(model.invoke("When did I ask you first?").content)
