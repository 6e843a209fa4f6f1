mod calm;
mod cases;
mod chaos;
mod codec;
mod departing;
mod disks;
mod state;
mod world;
