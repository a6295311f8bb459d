package mooncakec

import "time"

// lane is a kind of calls.
type lane struct {
	op    string
	width int // calls at a time, each with a thread in the library
	// transfer: the library moves bytes of the memory meanwhile.
	transfer bool
	limit    func(*Limits) time.Duration
}

// Numbers of lanes.
const (
	laneExist = iota
	lanePut
	laneGet
	laneRemove
	laneWatch
	laneCount
)

// lanes are constant.
var lanes = [laneCount]lane{
	laneExist:  {"exist", 2, false, question},
	lanePut:    {"put", 2, true, transfer},
	laneGet:    {"get", 4, true, transfer},
	laneRemove: {"remove", 1, false, question},
	laneWatch:  {"health", 1, false, question},
}

func question(l *Limits) time.Duration { return l.Question }
func transfer(l *Limits) time.Duration { return l.Transfer }
