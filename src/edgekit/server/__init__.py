"""What EdgeKit's HTTP servers share: connections, bodies, hosts, and limits per client."""
