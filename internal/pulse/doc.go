// Package pulse tells whether every loop of a daemon still goes round.
//
// A loop joins a Group and beats once a round, idle or not. When all have beaten,
// the one that was last calls the group's function, which tells the service
// manager that the daemon is alive. There is no goroutine that could go on to say
// so while a loop is stuck: a loop that does not beat keeps the others from it.
//
// A nil *Group has nil loops, and beating those does nothing: a daemon that
// nobody watches uses them.
package pulse
