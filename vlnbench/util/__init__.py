"""Tools without any notion of navigation: durable files, tables, progress, loading, processes, machine facts."""
