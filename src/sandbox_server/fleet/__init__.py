"""Many machines: workers that hold leases in Redis, and coordinators that route to them."""
