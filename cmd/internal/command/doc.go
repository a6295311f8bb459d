// Package command is what the commands of the daemons share: flags made from the
// configuration's fields, signals, logs, the status subcommand and exit codes.
package command
