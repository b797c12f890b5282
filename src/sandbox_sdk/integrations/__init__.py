"""Sandboxes as tools of AI agents. Each module is for one framework and needs its extra alone.

presenting       what a model sees: results, errors, limits
tools            the tools themselves, for any framework or none
langchain        LangChain and LangGraph: tools and a middleware
deepagents       a backend for deep agents
"""
