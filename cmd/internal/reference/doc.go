// Command reference writes docs/configuration.md from what the code says of its
// settings: the daemons' from internal/config, the connector's from the Python
// source that parses them. Run it by "make docs"; a test fails when the page is
// stale.
package main
